/* Loads and stores of whole tensors, for lanes of 1, 2, 4 and 8 bytes. Included twice by access.c, for checked kernels and
   for others.

   Whoever asks for a row has proved that its addresses grow by one lane each, but for an offset that wraps around, which
   the distance of the first and the last address shows. A row is dense if the lanes that the mask lets through come
   first: then they are checked, logged and copied at once. */

/* Lanes at `addresses`, or side by side from `first` on. Those masked off or outside of all memory stay as they are. */
#define EACH_LANE(type, action)                                                                                      \
  for (int64_t i = 0; i < lanes; i++) {                                                                              \
    uint64_t address = addresses ? addresses[i] : first + i * sizeof(type);                                          \
    if ((!mask || mask[i]) && INSIDE(address, sizeof(type), site)) action(type)                                      \
  }                                                                                                                  \
  break;
#define LOAD_LANE(type) {                                                                                            \
    ((type *)target)[i] = AT(type, address);                                                                         \
    LOG_BYTES(address, sizeof(type), site);                                                                          \
  }
#define STORE_LANE(type) {                                                                                           \
    AT(type, address) = ((const type *)values)[i];                                                                   \
    LOG_STORE(address, ((const type *)values)[i], sizeof(type), site);                                               \
  }

static void NAMED(load_each)(Launch *launch, Run *runs, const uint64_t *addresses, uint64_t first, const uint8_t *mask,
                             void *target, int64_t lanes, int size, int site) {
  switch (size) {
    case 1: EACH_LANE(uint8_t, LOAD_LANE)
    case 2: EACH_LANE(uint16_t, LOAD_LANE)
    case 4: EACH_LANE(uint32_t, LOAD_LANE)
    case 8: EACH_LANE(uint64_t, LOAD_LANE)
  }
}

static void NAMED(store_each)(Launch *launch, Run *runs, const uint64_t *addresses, uint64_t first, const uint8_t *mask,
                              const void *values, int64_t lanes, int size, int site) {
  switch (size) {
    case 1: EACH_LANE(uint8_t, STORE_LANE)
    case 2: EACH_LANE(uint16_t, STORE_LANE)
    case 4: EACH_LANE(uint32_t, STORE_LANE)
    case 8: EACH_LANE(uint64_t, STORE_LANE)
  }
}

static void NAMED(load_lanes)(Launch *launch, Run *runs, const uint64_t *addresses, const uint8_t *mask, void *target,
                              int64_t lanes, int size, int site) {
  NAMED(load_each)(launch, runs, addresses, 0, mask, target, lanes, size, site);
}

static void NAMED(store_lanes)(Launch *launch, Run *runs, const uint64_t *addresses, const uint8_t *mask,
                               const void *values, int64_t lanes, int size, int site) {
  NAMED(store_each)(launch, runs, addresses, 0, mask, values, lanes, size, site);
}

/* A row; returns 0, and does nothing, if an offset in it wraps around, which a row of one lane never does. */
static int NAMED(load_row)(Launch *launch, Run *runs, uint64_t first, uint64_t last, const uint8_t *mask, void *target,
                           int64_t lanes, int size, int site) {
  if (last - first != (uint64_t)((lanes - 1) * size)) return 0;
  int64_t active = first_lanes(mask, lanes);
  if (active < 0 || (active && !HOLDS(first, active * size))) {
    NAMED(load_each)(launch, runs, 0, first, mask, target, lanes, size, site);
  } else if (active) {
    memcpy(target, (const void *)first, active * size);
    LOG_BYTES(first, active * size, site);
  }
  return 1;
}

static int NAMED(store_row)(Launch *launch, Run *runs, uint64_t first, uint64_t last, const uint8_t *mask,
                            const void *values, int64_t lanes, int size, int site) {
  if (last - first != (uint64_t)((lanes - 1) * size)) return 0;
  int64_t active = first_lanes(mask, lanes);
  if (active < 0 || (active && !HOLDS(first, active * size))) {
    NAMED(store_each)(launch, runs, 0, first, mask, values, lanes, size, site);
  } else if (active) {
    memcpy((void *)first, values, active * size);
    LOG_STORE(first, *(const char *)values, active * size, site);
  }
  return 1;
}

#undef EACH_LANE
#undef LOAD_LANE
#undef STORE_LANE
