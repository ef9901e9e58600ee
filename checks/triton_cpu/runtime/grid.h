/* The end of every generated file: runs the programs of a grid.

   The generator has defined SITES, SCRATCH_BYTES, and
   `static void program(Launch *, const uint64_t *arguments, char *scratch, Run *runs, const int32_t *index, const int32_t *grid)`. */

int run_grid(Launch *launch, const uint64_t *arguments, int32_t x, int32_t y, int32_t z, const int32_t *order) {
  if (launch->scratch_capacity < SCRATCH_BYTES) {
    free(launch->scratch);
    launch->scratch = aligned_alloc(64, SCRATCH_BYTES);
    launch->scratch_capacity = launch->scratch ? SCRATCH_BYTES : 0;
    if (!launch->scratch) { stop(launch, OUT_OF_MEMORY, -1); return OUT_OF_MEMORY; }
  }
  const int32_t grid[3] = {x, y, z};
  Run runs[SITES + 1];
  memset(runs, 0, sizeof runs);
  for (int64_t position = 0; position < (int64_t)x * y * z && !launch->stopped; position++) {
    int32_t number = order ? order[position] : (int32_t)position;
    const int32_t index[3] = {number / (y * z), number / z % y, number % z};
    launch->program = number;
    launch->fuel_left = launch->fuel;
    program(launch, arguments, launch->scratch, runs, index, grid);
    for (int site = 0; launch->stopped && site < SITES; site++) LOG_END(site); /* what a stopped program left open */
  }
  return launch->stopped;
}
