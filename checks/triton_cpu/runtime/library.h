/* What CUDA's libdevice has and the C library lacks. Conversions from floats saturate; NaN becomes 0, or the least 64-bit
   integer where either side has 64 bits (PTX, cvt). */

#ifndef MRV2_LIBRARY_H
#define MRV2_LIBRARY_H

#include <math.h>
#include "numbers.h"

/* math.h declares them on request only. */
extern double exp10(double);
extern float exp10f(float);

#define SATURATING(name, source, type, least, bound, smallest, largest, nan)                                         \
  static inline type name(source value) {                                                                            \
    if (value != value) return nan;                                                                                  \
    return value < least ? smallest : value >= bound ? largest : (type)value;                                        \
  }

SATURATING(f32_to_s32, float, int32_t, -0x1p31f, 0x1p31f, INT32_MIN, INT32_MAX, 0)
SATURATING(f32_to_u32, float, uint32_t, 0.0f, 0x1p32f, 0, UINT32_MAX, 0)
SATURATING(f32_to_s64, float, int64_t, -0x1p63f, 0x1p63f, INT64_MIN, INT64_MAX, INT64_MIN)
SATURATING(f32_to_u64, float, uint64_t, 0.0f, 0x1p64f, 0, UINT64_MAX, 1ull << 63)
SATURATING(f64_to_s32, double, int32_t, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX, INT32_MIN)
SATURATING(f64_to_u32, double, uint32_t, 0.0, 0x1p32, 0, UINT32_MAX, 1u << 31)
SATURATING(f64_to_s64, double, int64_t, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX, INT64_MIN)
SATURATING(f64_to_u64, double, uint64_t, 0.0, 0x1p64, 0, UINT64_MAX, 1ull << 63)

static inline uint64_t reversed_bits(uint64_t value, int width) {
  uint64_t result = 0;
  for (int k = 0; k < width; k++) result |= (value >> k & 1) << (width - 1 - k);
  return result;
}

/* Each nibble of the selector picks one of the eight bytes of both words; its upper bit, which repeats the byte's sign
   in PTX, is not looked at by CUDA's function. */
static inline int32_t byte_permutation(uint32_t low, uint32_t high, uint32_t selector) {
  uint64_t bytes = (uint64_t)high << 32 | low, result = 0;
  for (int k = 0; k < 4; k++) result |= (bytes >> 8 * (selector >> 4 * k & 7) & 0xff) << 8 * k;
  return (int32_t)result;
}

static inline double f64_of_halves(int32_t high, int32_t low) {
  return f64_of_bits((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}

#endif
