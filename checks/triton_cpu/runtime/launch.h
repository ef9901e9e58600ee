/* What every compiled kernel includes.

   The generated file is: this header; `static void program(...)`, which runs one program of the grid; and `kernel`, which
   says so. Generated code touches memory through the macros of this file alone.

   Compiled with MRV2_AUDIT each access is checked against the blocks of memory that exist and logged; without, neither.
   One `Launch` belongs to one launch at a time, so launches in several threads need one each. */

#ifndef MRV2_LAUNCH_H
#define MRV2_LAUNCH_H

#include "numbers.h"
#include "float8.h"

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
  const struct Runtime *runtime;
  const uint8_t *fills;    /* of each site: the byte that its masked-off lanes hold, if it is a load without `other` */
  Print print;
  int64_t log_limit;       /* bytes that records, stored bytes and strays may take, each */
  int64_t fuel;            /* loop iterations that one program may do; wide ones count as several */
  int64_t fuel_left;
  int64_t nan_count;       /* NaNs that reached an argmax or argmin, where their place decides */
  int32_t nan_site;        /* the first such site; -1 if none */
  int32_t stopped;         /* why the launch ended early */
  int32_t stop_site;
  int32_t program;         /* the one that runs */
} Launch;

/* The run of bytes that a site is accessing in this program. */
typedef struct { uint64_t low, high; int64_t stored; } Run;

/* What kernels call to touch memory (access.c), checked or not. It is built once, not into each kernel: compiling it takes
   as long as compiling a small kernel. What an unchecked kernel does without is absent. */
typedef struct Runtime {
  int (*inside)(Launch *, uint64_t address, int size, int site);
  uint64_t (*read)(Launch *, uint64_t address, int size, int site);
  void (*write)(Launch *, uint64_t address, uint64_t value, int size, int site);
  void (*log_bytes)(Launch *, Run *, uint64_t address, int64_t size, int site);
  void (*end_run)(Launch *, Run *, int site);
  int (*load_row)(Launch *, Run *, uint64_t first, uint64_t last, const uint8_t *mask, void *target, int64_t lanes,
                  int size, int site);
  int (*store_row)(Launch *, Run *, uint64_t first, uint64_t last, const uint8_t *mask, const void *values,
                   int64_t lanes, int size, int site);
  void (*load_lanes)(Launch *, Run *, const uint64_t *, const uint8_t *mask, void *target, int64_t lanes, int size,
                     int site);
  void (*store_lanes)(Launch *, Run *, const uint64_t *, const uint8_t *mask, const void *values, int64_t lanes, int size,
                      int site);
  void (*fill)(void *target, uint64_t value, int size, int64_t lanes);
  void (*copy)(void *target, const void *source, int64_t bytes);
} Runtime;

/* What a generated file defines: its program, how many sites it has, the bytes of its tensors. */
typedef struct {
  void (*program)(Launch *, const uint64_t *arguments, char *scratch, Run *runs, const int32_t *index,
                  const int32_t *grid);
  int64_t scratch;
  int32_t sites, checked;
} Kernel;

/* Ends the launch: the program has neither fuel nor memory from here on, so its loops end and its accesses do nothing. */
static void __attribute__((noinline, cold)) stop(Launch *launch, int reason, int site) {
  launch->fuel_left = 0;
  launch->block_count = 0;
  launch->near_low = launch->near_high = 0;
  if (launch->stopped) return;
  launch->stopped = reason;
  launch->stop_site = site;
}

/* Each loop of a kernel spends fuel: a program that waits for another one would never end. An iteration costs more the
   more lanes it works on. */
#define SPEND_FUEL(site, amount) \
  if (__builtin_expect((launch->fuel_left -= (amount)) < 0, 0)) { stop(launch, OUT_OF_FUEL, site); return; }

/* Memory of the kernel's user: of any alignment, and any other type may have been written there. */
#define AT(type, address) (((struct __attribute__((packed, may_alias)) { type lane; } *)(uintptr_t)(address))->lane)

#ifdef MRV2_AUDIT

#define INSIDE(address, size, site) launch->runtime->inside(launch, (address), (size), (site))
#define READ(kind, address, site) \
  (((union { uint64_t bits; kind lane; }){launch->runtime->read(launch, (address), sizeof(kind), (site))}).lane)
#define WRITE(kind, address, value, site) \
  launch->runtime->write(launch, (address), ((union { kind lane; uint64_t bits; }){value}).bits, sizeof(kind), (site))
#define LOG_BYTES(address, size, site) launch->runtime->log_bytes(launch, &runs[site], (address), (size), (site))
#define LOG_END(site) launch->runtime->end_run(launch, &runs[site], (site))

#else

#define INSIDE(address, size, site) 1
#define READ(kind, address, site) AT(kind, address)
#define WRITE(kind, address, value, site) (AT(kind, address) = (value))
#define LOG_BYTES(address, size, site) ((void)0)
#define LOG_END(site) ((void)0)

#endif

/* Loops and calls that every compiler unrolls, which takes longer than they do. */
#define FILL(kind, target, value, lanes) \
  launch->runtime->fill(target, ((union { kind lane; uint64_t bits; }){value}).bits, sizeof(kind), lanes)
#define COPY(target, source, bytes) launch->runtime->copy(target, source, bytes)

#define LOAD_ROW launch->runtime->load_row
#define STORE_ROW launch->runtime->store_row
#define LOAD_LANES launch->runtime->load_lanes
#define STORE_LANES launch->runtime->store_lanes

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

#endif
