/* Runs the programs of a grid one after another. */

#include "launch.h"

int run_grid(const Kernel *kernel, Launch *launch, const uint64_t *arguments, int32_t x, int32_t y, int32_t z,
             const int32_t *order) {
  if (launch->scratch_capacity < kernel->scratch) {
    free(launch->scratch);
    launch->scratch = aligned_alloc(64, kernel->scratch);
    launch->scratch_capacity = launch->scratch ? kernel->scratch : 0;
    if (!launch->scratch) { stop(launch, OUT_OF_MEMORY, -1); return OUT_OF_MEMORY; }
  }
  launch->runtime = kernel->checked ? &checked : &unchecked;
  const int32_t grid[3] = {x, y, z};
  Run runs[kernel->sites + 1];
  memset(runs, 0, sizeof runs);
  for (int64_t position = 0; position < (int64_t)x * y * z && !launch->stopped; position++) {
    int32_t number = order ? order[position] : (int32_t)position;
    const int32_t index[3] = {number / (y * z), number / z % y, number % z};
    launch->program = number;
    launch->fuel_left = launch->fuel;
    kernel->program(launch, arguments, launch->scratch, runs, index, grid);
    for (int site = 0; kernel->checked && launch->stopped && site < kernel->sites; site++)
      checked.end_run(launch, &runs[site], site); /* what a stopped program left open */
  }
  return launch->stopped;
}
