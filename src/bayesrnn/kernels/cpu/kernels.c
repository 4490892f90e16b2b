/* Kernels for CPUs, compiled at first use by build.py. One translation unit. */

#ifdef _OPENMP
int omp_get_thread_num(void); /* declared here: a compiler may come without omp.h */
int omp_get_num_threads(void);
#define THREAD omp_get_thread_num()
#define THREADS omp_get_num_threads()
#else
#define THREAD 0
#define THREADS 1
#endif

#include "vector.h"

#include "noise.h"
#include "gaussian.h"

#include "product.h"
#include "recurrent.h"
