/* What a launch did to memory, from its records: merged byte ranges, and the bytes that programs may dispute.

   A byte is disputed if two programs touch it, at least one of them writes it, and not both atomically in one width: the
   numbers of kinds from ATOMIC on stand for widths of 1, 2, 4, 8 and 16 bytes. All such bytes
   are found, and no others: records are sorted by their first byte, and for each kind of access the sweep remembers the
   largest end so far and the largest of another program, so each record meets the one that reaches furthest into it. */

#include "launch.h"

enum { READ = 0, WRITE = 1, ATOMIC = 2, KINDS = 7 };

typedef struct { uint64_t low, high; int32_t program, kind; } Span;

/* The largest end of any program, and the largest of a program other than that one. */
typedef struct { uint64_t high, other_high; int32_t program; } Reach;

/* Stable; fast where the records are sorted in stretches, which they are. */
static void sort(Span *spans, Span *spare, int64_t count) {
  int64_t stretches = 2;
  for (int64_t low = 0; stretches > 1 && count > 1;) {
    stretches = 0;
    for (low = 0; low < count; stretches++) {
      int64_t middle = low + 1, end;
      while (middle < count && spans[middle - 1].low <= spans[middle].low) middle++;
      for (end = middle < count ? middle + 1 : count; end < count && spans[end - 1].low <= spans[end].low;) end++;
      int64_t left = low, right = middle;
      for (int64_t k = low; k < end; k++)
        spare[k] = right >= end || (left < middle && spans[left].low <= spans[right].low) ? spans[left++] : spans[right++];
      low = end;
    }
    memcpy(spans, spare, count * sizeof(Span));
  }
}

static Span *spans_of(const Record *records, int64_t count, const uint8_t *kinds, int wanted, uint64_t low, uint64_t high,
                      int64_t *found) {
  Span *spans = malloc((2 * count + 1) * sizeof(Span));
  *found = 0;
  if (!spans) return NULL;
  for (int64_t k = 0; k < count; k++) {
    const Record *record = &records[k];
    int kind = kinds[record->site];
    if (wanted >> kind & 1 && record->low < high && low < record->high)
      spans[(*found)++] = (Span){record->low, record->high, record->program, kind};
  }
  sort(spans, spans + count, *found);
  return spans;
}

/* Adds a range that begins no earlier than those before it; returns how many there are then. */
static int64_t add(uint64_t *ranges, int64_t count, uint64_t low, uint64_t high) {
  if (count && low <= ranges[2 * count - 1]) {
    if (high > ranges[2 * count - 1]) ranges[2 * count - 1] = high;
    return count;
  }
  ranges[2 * count] = low;
  ranges[2 * count + 1] = high;
  return count + 1;
}

/* Sorted, disjoint byte ranges of all records whose kind is in the bit set `wanted`: `ranges` has room for one for each
   record. Returns how many, or -1 without memory. */
int64_t merged(const Record *records, int64_t count, const uint8_t *kinds, int32_t wanted, uint64_t *ranges) {
  int64_t found, made = 0;
  Span *spans = spans_of(records, count, kinds, wanted, 0, UINT64_MAX, &found);
  if (!spans) return -1;
  for (int64_t k = 0; k < found; k++) made = add(ranges, made, spans[k].low, spans[k].high);
  free(spans);
  return made;
}

/* Where the bytes of another program end that this kind of access reached so far. */
static uint64_t end_of_others(const Reach *reach, int32_t program) {
  return reach->program == program ? reach->other_high : reach->high;
}

static void extend(Reach *reach, const Span *span) {
  if (span->program == reach->program) {
    if (span->high > reach->high) reach->high = span->high;
  } else if (span->high > reach->high) {
    reach->other_high = reach->high;
    reach->high = span->high;
    reach->program = span->program;
  } else if (span->high > reach->other_high) {
    reach->other_high = span->high;
  }
}

static int64_t sweep(const Span *spans, int64_t count, uint64_t *ranges) {
  Reach reach[KINDS];
  int64_t made = 0;
  for (int kind = 0; kind < KINDS; kind++) reach[kind] = (Reach){0, 0, -1};
  for (const Span *span = spans; span < spans + count; span++) {
    uint64_t end = 0;
    for (int kind = 0; kind < KINDS; kind++) {
      if (kind == span->kind && kind != WRITE) continue;
      uint64_t others = end_of_others(&reach[kind], span->program);
      if (others > end) end = others;
    }
    if (end > span->low && !ranges) return 1;
    if (end > span->low) made = add(ranges, made, span->low, end < span->high ? end : span->high);
    extend(&reach[span->kind], span);
  }
  return made;
}

/* Sorted, disjoint byte ranges that programs dispute: `ranges` has room for one for each record; without it, only
   whether there are any. Returns how many, or -1 without memory. */
int64_t disputed(const Record *records, int64_t count, const uint8_t *kinds, uint64_t *ranges) {
  uint64_t low = UINT64_MAX, high = 0; /* of all that is written: reads elsewhere dispute nothing */
  int several = 0;
  for (int64_t k = 0; k < count; k++) {
    several |= records[k].program != records[0].program;
    if (kinds[records[k].site] == READ) continue;
    if (records[k].low < low) low = records[k].low;
    if (records[k].high > high) high = records[k].high;
  }
  if (!several || !high) return 0;
  int64_t found;
  Span *spans = spans_of(records, count, kinds, (1 << KINDS) - 1, low, high, &found);
  if (!spans) return -1;
  int64_t made = sweep(spans, found, ranges);
  free(spans);
  return made;
}

/* Which records touch one of these ranges: their numbers, ascending. Returns how many. */
int64_t touching(const Record *records, int64_t count, const uint64_t *ranges, int64_t range_count, int64_t *numbers) {
  int64_t made = 0;
  for (int64_t k = 0; k < count; k++) {
    int64_t first = 0, last = range_count; /* the first range that ends behind the record's first byte */
    while (first < last) {
      int64_t middle = (first + last) / 2;
      if (ranges[2 * middle + 1] <= records[k].low) first = middle + 1; else last = middle;
    }
    if (first < range_count && ranges[2 * first] < records[k].high) numbers[made++] = k;
  }
  return made;
}

/* Gives back what a launch allocated. */
void release(Launch *launch) {
  free(launch->records);
  free(launch->stored);
  free(launch->strays);
  free(launch->scratch);
  launch->records = NULL; launch->stored = NULL; launch->strays = NULL; launch->scratch = NULL;
  launch->record_capacity = launch->stored_capacity = launch->stray_capacity = launch->scratch_capacity = 0;
}
