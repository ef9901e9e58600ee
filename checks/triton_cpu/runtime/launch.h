/* What every compiled kernel includes.

   The generated file is: this header; `static void program(...)`, which runs one program of the grid; and `run_grid`
   below it, which runs them one after another. Generated code touches memory through the macros of this file alone.

   Compiled with MRV2_AUDIT each access is checked against the blocks of memory that exist and logged; without, neither.
   One `Launch` belongs to one launch at a time, so launches in several threads need one each. */

#ifndef MRV2_LAUNCH_H
#define MRV2_LAUNCH_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "numbers.h"
#include "float8.h"
#include "library.h"

/* Adjacent bytes that one site accessed in one program, in the order in which the sites finished. */
typedef struct {
  uint64_t low, high;      /* half-open range of addresses */
  int32_t site, program;
  int64_t stored;          /* of a store: where its bytes begin in Launch.stored; else -1 */
} Record;

/* Lanes outside of all blocks: masked off, never executed. One for each site and program. */
typedef struct {
  uint64_t low, high;      /* hull of the addresses */
  int32_t site, program;
  int64_t lanes;
} Stray;

/* One of numpy's inner loops. */
typedef struct {
  void (*run)(char **arrays, const long *lanes, const long *strides, void *data);
  void *data;
} Loop;

enum { RUNNING = 0, OUT_OF_FUEL = 1, ASSERTION_FAILED = 2, OUT_OF_MEMORY = 3, LOG_FULL = 4, PRINT_FAILED = 5 };

/* Tells Python of a device_print: which site, which of its values, and the lanes of it. */
typedef void (*Print)(int32_t site, int32_t value, const void *lanes);

typedef struct Launch {
  Record *records;
  int64_t record_count, record_capacity;
  uint8_t *stored;
  int64_t stored_count, stored_capacity;
  Stray *strays;
  int64_t stray_count, stray_capacity;
  const uint64_t *blocks;  /* low, high of each block of memory, sorted, disjoint */
  int64_t block_count;
  uint64_t near_low, near_high; /* the block that was hit last */
  char *scratch;           /* storage of the tensors of one program, 64-byte aligned */
  int64_t scratch_capacity;
  const Loop *loops;       /* indexed by the LOOP_ constants that the generator writes */
  const uint8_t *fills;    /* of each site: the byte that its masked-off lanes hold, if it is a load without `other` */
  Print print;
  int64_t log_limit;       /* bytes that records, stored bytes and strays may take, each */
  int64_t fuel;            /* loop iterations that one program may do */
  int64_t fuel_left;
  int64_t nan_count;       /* NaNs that reached an argmax or argmin, where their place decides */
  int32_t nan_site;        /* the first such site; -1 if none */
  int32_t stopped;         /* why the launch ended early */
  int32_t stop_site;
  int32_t program;         /* the one that runs */
} Launch;

/* The run of bytes that a site is accessing in this program. */
typedef struct { uint64_t low, high; int64_t stored; } Run;

/* Ends the launch: the program has neither fuel nor memory from here on, so its loops end and its accesses do nothing. */
static void __attribute__((noinline, cold)) stop(Launch *launch, int reason, int site) {
  launch->fuel_left = 0;
  launch->block_count = 0;
  launch->near_low = launch->near_high = 0;
  if (launch->stopped) return;
  launch->stopped = reason;
  launch->stop_site = site;
}

/* Each loop of a kernel spends fuel: a program that waits for another one would never end. */
#define SPEND_FUEL(site) \
  if (__builtin_expect(--launch->fuel_left < 0, 0)) { stop(launch, OUT_OF_FUEL, site); return; }

#ifdef MRV2_AUDIT

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

#define HOLDS(address, size) holds(launch, (address), (size))
#define INSIDE(address, size, site) inside(launch, (address), (size), (site))
#define LOG_BYTES(address, size, site) log_bytes(launch, &runs[site], (address), (size), (site))
#define LOG_STORE(address, value, size, site) log_store(launch, &runs[site], (address), &(value), (size), (site))
#define LOG_END(site) end_run(launch, &runs[site], (site))

#else

#define HOLDS(address, size) 1
#define INSIDE(address, size, site) 1
#define LOG_BYTES(address, size, site) ((void)0)
#define LOG_STORE(address, value, size, site) ((void)0)
#define LOG_END(site) ((void)0)

#endif

/* Memory of the kernel's user: of any alignment, and any other type may have been written there. */
#define AT(type, address) (((struct __attribute__((packed, may_alias)) { type lane; } *)(uintptr_t)(address))->lane)

/* One of numpy's inner loops over lanes that lie side by side. */
#define CALL_LOOP(loop, in, out, lanes) call_loop(&launch->loops[loop], (in), (out), (lanes), sizeof *(out))
static inline void call_loop(const Loop *loop, const void *in, void *out, long lanes, long size) {
  char *arrays[2] = {(char *)in, (char *)out};
  const long strides[2] = {size, size};
  loop->run(arrays, &lanes, strides, loop->data);
}

/* A NaN in front of an argmax or argmin: the place of NaNs decides the result, differently on every machine. */
static inline void nan_seen(Launch *launch, int site) {
  if (!launch->nan_count++) launch->nan_site = site;
}

#include "tiles.h"

#endif
