/* Arithmetic that C leaves undefined or lacks; the rules are those of numpy where it has one, else of PTX. */

#ifndef MRV2_NUMBERS_H
#define MRV2_NUMBERS_H

#include "c_library.h"

static inline uint32_t bits_of_f32(float value) { uint32_t bits; memcpy(&bits, &value, sizeof bits); return bits; }
static inline uint64_t bits_of_f64(double value) { uint64_t bits; memcpy(&bits, &value, sizeof bits); return bits; }
static inline float f32_of_bits(uint32_t bits) { float value; memcpy(&value, &bits, sizeof value); return value; }
static inline double f64_of_bits(uint64_t bits) { double value; memcpy(&value, &bits, sizeof value); return value; }

/* bfloat16 is the upper half of a float32. A NaN stays one: its lower half may hold all that made it one. */
static inline float bf16_to_f32(uint16_t value) { return f32_of_bits((uint32_t)value << 16); }

static inline uint16_t f32_to_bf16(float value) {
  uint32_t bits = bits_of_f32(value);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return value != value ? (bits >> 16 | 0x40) : rounded;
}

static inline uint16_t f32_to_bf16_truncated(float value) { return bits_of_f32(value) >> 16; }

/* maxnum and minnum prefer a number to a NaN, maximum and minimum a NaN to a number. Of two zeros the greater is the
   positive one, as in PTX; numpy's choice changes from lane to lane. */
#define FLOAT_EXTREMES(name, type, bits, of)                                                                         \
  static inline type max_##name(type a, type b) { return a == b ? of(bits(a) & bits(b)) : a > b ? a : b; }           \
  static inline type min_##name(type a, type b) { return a == b ? of(bits(a) | bits(b)) : a < b ? a : b; }           \
  static inline type maxnum_##name(type a, type b) { return b != b ? a : max_##name(a, b); }                         \
  static inline type minnum_##name(type a, type b) { return b != b ? a : min_##name(a, b); }                         \
  static inline type maximum_##name(type a, type b) { return a != a ? a : max_##name(a, b); }                        \
  static inline type minimum_##name(type a, type b) { return a != a ? a : min_##name(a, b); }

FLOAT_EXTREMES(f32, float, bits_of_f32, f32_of_bits)
FLOAT_EXTREMES(f64, double, bits_of_f64, f64_of_bits)

/* Division by zero gives zero; the quotient of the least number by -1 wraps to itself, its remainder is 0. */
#define SIGNED_DIVISION(name, type)                                                                                  \
  static inline type quotient_##name(type a, type b) { return b == 0 ? 0 : b == -1 ? (type)-a : a / b; }             \
  static inline type remainder_##name(type a, type b) { return b == 0 || b == -1 ? 0 : a % b; }

#define UNSIGNED_DIVISION(name, type)                                                                                \
  static inline type quotient_##name(type a, type b) { return b == 0 ? 0 : a / b; }                                  \
  static inline type remainder_##name(type a, type b) { return b == 0 ? 0 : a % b; }

SIGNED_DIVISION(int8_t, int8_t)
SIGNED_DIVISION(int16_t, int16_t)
SIGNED_DIVISION(int32_t, int32_t)
SIGNED_DIVISION(int64_t, int64_t)
UNSIGNED_DIVISION(uint8_t, uint8_t)
UNSIGNED_DIVISION(uint16_t, uint16_t)
UNSIGNED_DIVISION(uint32_t, uint32_t)
UNSIGNED_DIVISION(uint64_t, uint64_t)

/* Float to integer as numpy on x86 does it: what does not fit, and NaN, becomes the least int32 or int64; narrower
   integers are the low bits of an int32, uint32 is the low bits of an int64. A GPU saturates instead. */
static inline int32_t f64_to_int32(double value) {
  return value > -2147483649.0 && value < 2147483648.0 ? (int32_t)value : INT32_MIN;
}
static inline int64_t f64_to_int64(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}
static inline uint64_t f64_to_uint64(double value) {
  return value >= 0x1p63 ? (uint64_t)f64_to_int64(value - 0x1p63) ^ (1ull << 63) : (uint64_t)f64_to_int64(value);
}

#endif
