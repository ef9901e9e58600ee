/* What kernels call of the C library. Its own headers take as long to read as a small kernel takes to compile, so they
   are included only where that is seldom (library.h) or done once (access.c). */

#ifndef MRV2_C_LIBRARY_H
#define MRV2_C_LIBRARY_H

#include <stdint.h>

void *memcpy(void *, const void *, __SIZE_TYPE__);
void *memset(void *, int, __SIZE_TYPE__);
int memcmp(const void *, const void *, __SIZE_TYPE__);

#define EXACT_FUNCTION(name) double name(double); float name##f(float);
EXACT_FUNCTION(fabs)
EXACT_FUNCTION(sqrt)
EXACT_FUNCTION(floor)
EXACT_FUNCTION(ceil)
double fmod(double, double);
float fmodf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
double erf(double);

#define NOT_A_NUMBER __builtin_nanf("")
#define INFINITE __builtin_inff()

#endif
