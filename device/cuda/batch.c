//go:build cuda

#include "batch.h"

#include <stddef.h>
#include <cuda.h>

// enter makes the context current and returns the one that was, if it has to
// be put back: a thread without a context may keep this one.
static CUresult enter(uintptr_t context, CUcontext *previous)
{
	CUcontext now = NULL;
	CUresult result = cuCtxGetCurrent(&now);
	*previous = NULL;
	if (result != CUDA_SUCCESS || now == (CUcontext)context)
		return result;
	result = cuCtxSetCurrent((CUcontext)context);
	if (result == CUDA_SUCCESS)
		*previous = now;
	return result;
}

static void leave(CUcontext previous)
{
	if (previous != NULL)
		cuCtxSetCurrent(previous);
}

// In the context, result is what call returns.
#define WITHIN(context, call)                                                  \
	do {                                                                   \
		CUcontext previous;                                            \
		CUresult result = enter(context, &previous);                   \
		if (result == CUDA_SUCCESS) {                                  \
			result = (call);                                       \
			leave(previous);                                       \
		}                                                              \
		return result;                                                 \
	} while (0)

static uintptr_t operand(const offload_command *list, int32_t from, uintptr_t offset)
{
	return from < 0 ? offset : list[from].dst + offset;
}

static CUresult copy_rows(const offload_command *list, const offload_command *c, CUstream stream)
{
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = (CUdeviceptr)operand(list, c->src_from, c->src),
		.srcPitch = c->src_pitch,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = (CUdeviceptr)operand(list, c->dst_from, c->dst),
		.dstPitch = c->dst_pitch,
		.WidthInBytes = c->bytes,
		.Height = c->rows,
	};

	return cuMemcpy2DAsync(&rows, stream);
}

static CUresult run(const offload_command *list, offload_command *c, CUmemoryPool pool)
{
	CUstream stream = (CUstream)c->stream;
	CUdeviceptr fresh = 0;
	CUresult result;

	switch (c->verb) {
	case OFFLOAD_RECORD:
		return cuEventRecord((CUevent)c->event, stream);
	case OFFLOAD_WAIT:
		return cuStreamWaitEvent(stream, (CUevent)c->event, 0);
	case OFFLOAD_ALLOC:
		result = cuMemAllocFromPoolAsync(&fresh, c->bytes, pool, stream);
		c->dst = (uintptr_t)fresh;
		return result;
	case OFFLOAD_FREE:
		return cuMemFreeAsync((CUdeviceptr)operand(list, c->dst_from, c->dst), stream);
	case OFFLOAD_COPY_OUT:
		return cuMemcpyDtoHAsync((void *)c->dst, (CUdeviceptr)operand(list, c->src_from, c->src), c->bytes, stream);
	case OFFLOAD_COPY_IN:
		return cuMemcpyHtoDAsync((CUdeviceptr)operand(list, c->dst_from, c->dst), (const void *)c->src, c->bytes, stream);
	case OFFLOAD_COPY_WITHIN:
		return cuMemcpyDtoDAsync((CUdeviceptr)operand(list, c->dst_from, c->dst),
			(CUdeviceptr)operand(list, c->src_from, c->src), c->bytes, stream);
	case OFFLOAD_COPY_ROWS:
		return copy_rows(list, c, stream);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

int offload_enqueue(uintptr_t context, uintptr_t pool, offload_command *list, int n, int *done)
{
	CUcontext previous;
	CUresult result = enter(context, &previous);

	*done = 0;
	if (result != CUDA_SUCCESS)
		return result;
	while (*done < n) {
		result = run(list, &list[*done], (CUmemoryPool)pool);
		if (result != CUDA_SUCCESS)
			break;
		++*done;
	}
	leave(previous);
	return result;
}

static CUresult pool_create(int ordinal, uintptr_t *pool)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_NONE,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
	};
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool p = NULL;
	CUresult result = cuMemPoolCreate(&p, &props);

	if (result != CUDA_SUCCESS)
		return result;
	// Otherwise every synchronisation gives free memory back to the driver.
	result = cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
	if (result != CUDA_SUCCESS) {
		cuMemPoolDestroy(p);
		return result;
	}
	*pool = (uintptr_t)p;
	return CUDA_SUCCESS;
}

int offload_pool_create(uintptr_t context, int ordinal, uintptr_t *pool)
{
	WITHIN(context, pool_create(ordinal, pool));
}

int offload_pool_destroy(uintptr_t context, uintptr_t pool)
{
	WITHIN(context, cuMemPoolDestroy((CUmemoryPool)pool));
}

int offload_pin(uintptr_t context, uintptr_t bytes, uintptr_t *address)
{
	WITHIN(context, cuMemHostAlloc((void **)address, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

int offload_unpin(uintptr_t context, uintptr_t address)
{
	WITHIN(context, cuMemFreeHost((void *)address));
}

int offload_free(uintptr_t context, uintptr_t address)
{
	WITHIN(context, cuMemFree((CUdeviceptr)address));
}

const char *offload_name(int result)
{
	const char *name = NULL;

	return cuGetErrorName((CUresult)result, &name) == CUDA_SUCCESS ? name : NULL;
}
