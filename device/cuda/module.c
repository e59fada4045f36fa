//go:build cuda

#include "module.h"

#include <stdlib.h>
#include <cuda.h>

int offload_module_load(const void *image, char *log, int bytes, uintptr_t *module)
{
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)bytes};
	CUmodule m = NULL;
	CUresult result = cuModuleLoadDataEx(&m, image, 2, options, values);

	*module = (uintptr_t)m;
	return result;
}

int offload_module_unload(uintptr_t module)
{
	return cuModuleUnload((CUmodule)module);
}

int offload_function(uintptr_t module, const char *name, uintptr_t *function)
{
	CUfunction f = NULL;
	CUresult result = cuModuleGetFunction(&f, (CUmodule)module, name);

	*function = (uintptr_t)f;
	return result;
}

int offload_launch_kernel(offload_launch *l)
{
	void *at[OFFLOAD_MAX_PARAMS];

	for (int i = 0; i < l->count; i++)
		at[i] = &l->params[i];
	return cuLaunchKernel((CUfunction)l->function, l->grid, 1, 1, l->block, 1, 1, 0, (CUstream)l->stream, at, NULL);
}

void offload_release(void *p)
{
	free(p);
}
