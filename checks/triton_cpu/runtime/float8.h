/* Floats of eight bits. Each format is what the Open Compute Project's OFP8 or the FNUZ papers say; conversions to it
   round to nearest even and never overflow, as PTX's cvt.rn.satfinite: the largest number stands for all above it. */

#ifndef MRV2_FLOAT8_H
#define MRV2_FLOAT8_H

#include "numbers.h"

typedef struct {
  int mantissa, bias;          /* bits of the mantissa; what the exponent is shifted by */
  uint8_t largest;             /* the code of the largest number */
  uint8_t infinity;            /* its code; 0 if the format has none */
  uint8_t nan;                 /* the code that a conversion gives; all codes above the largest but infinity are NaN */
  uint8_t one_zero;            /* whether the code of minus zero is the only NaN */
} Float8;

#define F8E5M2 ((Float8){2, 15, 0x7b, 0x7c, 0x7f, 0})
#define F8E4M3FN ((Float8){3, 7, 0x7e, 0, 0x7f, 0})
#define F8E5M2FNUZ ((Float8){2, 16, 0x7f, 0, 0x80, 1})
#define F8E4M3FNUZ ((Float8){3, 8, 0x7f, 0, 0x80, 1})

/* The exponent and mantissa are moved to where float32 has them, the bias is put right by a multiplication. */
static inline float float8_to_f32(Float8 format, uint8_t code) {
  uint32_t magnitude = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
  if (format.one_zero && code == 0x80) return NOT_A_NUMBER;
  if (magnitude > format.largest) return magnitude == format.infinity ? (sign ? -INFINITE : INFINITE) : NOT_A_NUMBER;
  float scale = f32_of_bits((uint32_t)(254 - format.bias) << 23);
  float value = f32_of_bits(magnitude << (23 - format.mantissa)) * scale;
  return sign ? -value : value;
}

/* `toward_zero` cuts off instead; infinity then stays infinity, which is how PTX's cvt.rz to float16 and the upper byte
   of that come out. */
static inline uint8_t f64_to_float8(Float8 format, double value, int toward_zero) {
  uint64_t bits = bits_of_f64(value), fraction = bits & 0xfffffffffffffull;
  int sign = bits >> 63, exponent = (int)(bits >> 52 & 0x7ff) - 1023, least = 1 - format.bias;
  if (value != value) return format.nan;
  if (toward_zero && exponent == 1024 && format.infinity) return sign << 7 | format.infinity;
  int below = exponent < least ? least - exponent : 0, cut = 52 - format.mantissa + below;
  if (cut > 62) return format.one_zero ? 0 : sign << 7; /* less than half of the smallest */
  uint64_t whole = fraction | 1ull << 52, code = whole >> cut, rest = whole & ((1ull << cut) - 1), half = 1ull << (cut - 1);
  if (!toward_zero && (rest > half || (rest == half && code & 1))) code++;
  code += (uint64_t)(exponent - least + below) << format.mantissa;
  if (code > format.largest) code = format.largest;
  return format.one_zero && code == 0 ? 0 : sign << 7 | code;
}

/* Triton's own e4b15 (four bits of exponent, bias 15, no infinity, no NaN) is float16 without the upper bit of the
   exponent and with three bits of mantissa; ties round away from zero, and 1.75 stands for all above it. */
static inline _Float16 e4b15_to_f16(uint8_t code) {
  uint16_t bits = (code & 0x80) << 8 | (code & 0x7f) << 7;
  _Float16 value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint8_t f16_to_e4b15(_Float16 value) {
  uint16_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t magnitude = bits & 0x7fff;
  if (magnitude > 0x3f00) magnitude = 0x3f00;
  return (bits & 0x8000 | (magnitude * 2 + 0x80)) >> 8;
}

/* Four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their opposites. */
static inline float e2m1_to_f32(uint8_t code) {
  static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

/* A power of two; 255 is NaN. The smallest, 2^-127, is zero where scales become float16. */
static inline float e8m0_to_f32(uint8_t code, int half) {
  if (code == 255) return NOT_A_NUMBER;
  return f32_of_bits(code || half ? (uint32_t)code << 23 : 0x00400000);
}

/* Rounded toward zero: the next number nearer to zero, if the nearest one is farther from it. */
static inline _Float16 f64_to_f16_toward_zero(double value) {
  _Float16 nearest = (_Float16)value;
  uint16_t bits;
  memcpy(&bits, &nearest, sizeof bits);
  if (fabs((double)nearest) > fabs(value)) bits--;
  memcpy(&nearest, &bits, sizeof bits);
  return nearest;
}

static inline uint16_t f64_to_bf16_toward_zero(double value) {
  if (value != value) return 0x7fff;
  float nearest = (float)value;
  uint32_t bits = bits_of_f32(nearest);
  if (fabs((double)nearest) > fabs(value)) bits--;
  return bits >> 16;
}

#endif
