/* Loads and stores of whole tensors, for lanes of 1, 2, 4 and 8 bytes.

   A row is dense if its lanes lie side by side and those that the mask lets through come first: then it is checked,
   logged and copied at once. Whoever calls has proved that the addresses grow by one lane each, but for an offset that
   wraps around, which the distance of the first and the last address shows. */

#ifndef MRV2_TILES_H
#define MRV2_TILES_H

/* How many lanes of a row the mask lets through; -1 if they are not the first ones. No mask lets all through. */
static int64_t first_lanes(const uint8_t *mask, int64_t lanes) {
  if (!mask) return lanes;
  const uint8_t *end = memchr(mask, 0, lanes);
  if (!end) return lanes;
  return memchr(end, 1, lanes - (end - mask)) ? -1 : end - mask;
}

static int64_t dense_bytes(Launch *launch, uint64_t first, uint64_t last, const uint8_t *mask, int64_t lanes, int size) {
  int64_t active = last - first == (uint64_t)((lanes - 1) * size) ? first_lanes(mask, lanes) : -1;
  return active > 0 && !HOLDS(first, active * size) ? -1 : active * size;
}

/* A dense row into `target`, whose other lanes stay; returns 0 if the row is not dense. */
static int load_dense(Launch *launch, Run *runs, uint64_t first, uint64_t last, const uint8_t *mask, void *target,
                      int64_t lanes, int size, int site) {
  int64_t bytes = dense_bytes(launch, first, last, mask, lanes, size);
  if (bytes > 0) {
    memcpy(target, (const void *)first, bytes);
    LOG_BYTES(first, bytes, site);
  }
  return bytes >= 0;
}

static int store_dense(Launch *launch, Run *runs, uint64_t first, uint64_t last, const uint8_t *mask,
                       const void *values, int64_t lanes, int size, int site) {
  int64_t bytes = dense_bytes(launch, first, last, mask, lanes, size);
  if (bytes > 0) {
    memcpy((void *)first, values, bytes);
    LOG_STORE(first, *(const char *)values, bytes, site);
  }
  return bytes >= 0;
}

/* Lanes anywhere, one after another; those that are masked off or outside of all memory stay as they are. */
#define LANES(type, size)                                                                                            \
  static void load_lanes_##size(Launch *launch, Run *runs, const uint64_t *addresses, const uint8_t *mask,           \
                                type *restrict target, int64_t lanes, int site) {                                    \
    for (int64_t i = 0; i < lanes; i++)                                                                              \
      if ((!mask || mask[i]) && INSIDE(addresses[i], size, site)) {                                                  \
        target[i] = AT(type, addresses[i]);                                                                          \
        LOG_BYTES(addresses[i], size, site);                                                                         \
      }                                                                                                              \
  }                                                                                                                  \
  static void store_lanes_##size(Launch *launch, Run *runs, const uint64_t *addresses, const uint8_t *mask,          \
                                 const type *restrict values, int64_t lanes, int site) {                             \
    for (int64_t i = 0; i < lanes; i++)                                                                              \
      if ((!mask || mask[i]) && INSIDE(addresses[i], size, site)) {                                                  \
        AT(type, addresses[i]) = values[i];                                                                          \
        LOG_STORE(addresses[i], values[i], size, site);                                                              \
      }                                                                                                              \
  }

LANES(uint8_t, 1)
LANES(uint16_t, 2)
LANES(uint32_t, 4)
LANES(uint64_t, 8)

#endif
