/* How kernels touch memory. Of a checked one each access is compared with the blocks that exist, and logged. */

#include <stdlib.h>
#include <string.h>
#include "launch.h"

/* Makes room for one more element; returns 0 if there is no memory left, or the limit is reached, and stops the launch. */
static int __attribute__((noinline, cold)) grow(Launch *launch, void **items, int64_t *capacity, int64_t needed,
                                                size_t size, int site) {
  if (launch->stopped) return 0;
  int64_t larger = *capacity ? *capacity : 1024;
  while (larger < needed) larger *= 2;
  if (larger * (int64_t)size > launch->log_limit) { stop(launch, LOG_FULL, site); return 0; }
  void *moved = realloc(*items, larger * size);
  if (!moved) { stop(launch, OUT_OF_MEMORY, -1); return 0; }
  *items = moved;
  *capacity = larger;
  return 1;
}

static void __attribute__((noinline, cold)) stray(Launch *launch, uint64_t address, int size, int site) {
  if (launch->stopped) return;
  for (int64_t k = launch->stray_count; k-- > 0;) {
    Stray *last = &launch->strays[k];
    if (last->program != launch->program) break;
    if (last->site != site) continue;
    if (address < last->low) last->low = address;
    if (address + size > last->high) last->high = address + size;
    last->lanes++;
    return;
  }
  if (launch->stray_count == launch->stray_capacity &&
      !grow(launch, (void **)&launch->strays, &launch->stray_capacity, launch->stray_count + 1, sizeof(Stray), site)) return;
  launch->strays[launch->stray_count++] = (Stray){address, address + size, site, launch->program, 1};
}

/* Finds the block that holds all bytes from an address on, and makes it the near one. */
static int __attribute__((noinline)) find_block(Launch *launch, uint64_t address, int64_t size) {
  int64_t first = 0, last = launch->block_count;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    if (launch->blocks[2 * middle] <= address) first = middle + 1; else last = middle;
  }
  if (first > 0 && address < launch->blocks[2 * first - 1] && launch->blocks[2 * first - 1] - address >= (uint64_t)size) {
    launch->near_low = launch->blocks[2 * first - 2];
    launch->near_high = launch->blocks[2 * first - 1];
    return 1;
  }
  return 0;
}

/* Whether one block holds all bytes from an address on. */
static inline int holds(Launch *launch, uint64_t address, int64_t size) {
  return (address >= launch->near_low && address < launch->near_high && launch->near_high - address >= (uint64_t)size) ||
         find_block(launch, address, size);
}

/* The same for one lane; if none does, that is reported. */
static inline int inside(Launch *launch, uint64_t address, int size, int site) {
  if (__builtin_expect(holds(launch, address, size), 1)) return 1;
  stray(launch, address, size, site);
  return 0;
}

static void end_run(Launch *launch, Run *run, int site) {
  if (run->high == run->low) return;
  if (launch->record_count == launch->record_capacity &&
      !grow(launch, (void **)&launch->records, &launch->record_capacity, launch->record_count + 1, sizeof(Record), site)) return;
  launch->records[launch->record_count++] = (Record){run->low, run->high, site, launch->program, run->stored};
  run->low = run->high = 0;
}

/* Reads and atomics: bytes that the run already holds are not logged again. */
static inline void log_bytes(Launch *launch, Run *run, uint64_t address, int64_t size, int site) {
  if (address == run->high) { run->high += size; return; }
  if (address >= run->low && address + size <= run->high) return;
  end_run(launch, run, site);
  *run = (Run){address, address + size, -1};
}

/* Stores: the bytes are kept, for two programs that store the same are not in conflict. */
static inline void log_store(Launch *launch, Run *run, uint64_t address, const void *value, int64_t size, int site) {
  if (address != run->high || run->high == run->low) {
    end_run(launch, run, site);
    *run = (Run){address, address, launch->stored_count};
  }
  if (launch->stored_count + size > launch->stored_capacity &&
      !grow(launch, (void **)&launch->stored, &launch->stored_capacity, launch->stored_count + size, 1, site)) return;
  memcpy(launch->stored + launch->stored_count, value, size);
  launch->stored_count += size;
  run->high += size;
}

/* One lane by itself, which is a record by itself; 0 if it may not be read. */
static uint64_t read(Launch *launch, uint64_t address, int size, int site) {
  uint64_t value = 0;
  if (!inside(launch, address, size, site)) return 0;
  Run run = {address, address + size, -1};
  end_run(launch, &run, site);
  memcpy(&value, (const void *)address, size);
  return value;
}

static void write(Launch *launch, uint64_t address, uint64_t value, int size, int site) {
  if (!inside(launch, address, size, site)) return;
  Run run = {0, 0, -1};
  log_store(launch, &run, address, &value, size, site);
  end_run(launch, &run, site);
  if (!launch->stopped) memcpy((void *)address, &value, size); /* a log that is full keeps the lane from being written */
}

/* How many lanes of a row the mask lets through; -1 if they are not the first ones. No mask lets all through. */
static int64_t first_lanes(const uint8_t *mask, int64_t lanes) {
  if (!mask) return lanes;
  const uint8_t *end = memchr(mask, 0, lanes);
  if (!end) return lanes;
  return memchr(end, 1, lanes - (end - mask)) ? -1 : end - mask;
}

#define FILL_LANES(type) for (int64_t i = 0; i < lanes; i++) ((type *)target)[i] = value; break;
static void fill(void *target, uint64_t value, int size, int64_t lanes) {
  switch (size) {
    case 1: memset(target, (int)value, lanes); break;
    case 2: FILL_LANES(uint16_t)
    case 4: FILL_LANES(uint32_t)
    case 8: FILL_LANES(uint64_t)
  }
}

static void copy(void *target, const void *source, int64_t bytes) { memcpy(target, source, bytes); }

#undef INSIDE
#undef LOG_BYTES

#define NAMED(function) checked_##function
#define HOLDS(address, size) holds(launch, (address), (size))
#define INSIDE(address, size, site) inside(launch, (address), (size), (site))
#define LOG_BYTES(address, size, site) log_bytes(launch, &runs[site], (address), (size), (site))
#define LOG_STORE(address, value, size, site) log_store(launch, &runs[site], (address), &(value), (size), (site))
#include "tiles.h"

#undef NAMED
#undef HOLDS
#undef INSIDE
#undef LOG_BYTES
#undef LOG_STORE

#define NAMED(function) unchecked_##function
#define HOLDS(address, size) 1
#define INSIDE(address, size, site) 1
#define LOG_BYTES(address, size, site) ((void)0)
#define LOG_STORE(address, value, size, site) ((void)0)
#include "tiles.h"

static const Runtime checked = {
  inside, read, write, log_bytes, end_run, checked_load_row, checked_store_row, checked_load_lanes, checked_store_lanes,
  fill, copy,
};
static const Runtime unchecked = {
  .load_row = unchecked_load_row, .store_row = unchecked_store_row,
  .load_lanes = unchecked_load_lanes, .store_lanes = unchecked_store_lanes, .fill = fill, .copy = copy,
};
