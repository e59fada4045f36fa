// Modules and launches. The context must be current. The results are CUresult.

#ifndef OFFLOAD_MODULE_H
#define OFFLOAD_MODULE_H

#include <stdint.h>

enum { OFFLOAD_MAX_PARAMS = 12 };

typedef struct {
	uintptr_t function, stream;
	unsigned grid, block;
	int count;
	uint64_t params[OFFLOAD_MAX_PARAMS];
} offload_launch;

// Loads an image that ends with a zero byte; what the compiler of PTX says goes to log.
int offload_module_load(const void *image, char *log, int bytes, uintptr_t *module);
int offload_module_unload(uintptr_t module);
int offload_function(uintptr_t module, const char *name, uintptr_t *function);
int offload_launch_kernel(offload_launch *l);

// Frees memory of malloc.
void offload_release(void *p);

#endif
