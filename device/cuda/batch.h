// What package cuda needs of the driver and gorgonia.org/cu does not have, and
// the loop that enqueues a batch. Every function makes the context current for
// the time of the call. The results are CUresult, 0 for success.

#ifndef OFFLOAD_BATCH_H
#define OFFLOAD_BATCH_H

#include <stdint.h>

enum { // verbs
	OFFLOAD_RECORD = 1,
	OFFLOAD_WAIT,
	OFFLOAD_ALLOC,
	OFFLOAD_FREE,
	OFFLOAD_COPY_OUT,
	OFFLOAD_COPY_IN,
	OFFLOAD_COPY_WITHIN,
	OFFLOAD_COPY_ROWS,
};

// The same bytes as the Go struct command; see there.
typedef struct {
	int32_t verb, op, dst_from, src_from;
	uintptr_t stream, event, dst, src, bytes, rows, dst_pitch, src_pitch;
} offload_command;

// Runs list[0] to list[n-1] until one fails; *done is the number that did not.
int offload_enqueue(uintptr_t context, uintptr_t pool, offload_command *list, int n, int *done);

// A pool of the device that keeps what is freed.
int offload_pool_create(uintptr_t context, int ordinal, uintptr_t *pool);
int offload_pool_destroy(uintptr_t context, uintptr_t pool);

// Page-locked memory that every context can copy from and to.
int offload_pin(uintptr_t context, uintptr_t bytes, uintptr_t *address);
int offload_unpin(uintptr_t context, uintptr_t address);

// Frees device memory of the pool; all work must have ended.
int offload_free(uintptr_t context, uintptr_t address);

// The name of a CUresult, or NULL.
const char *offload_name(int result);

#endif
