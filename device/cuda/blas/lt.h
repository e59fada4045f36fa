// The part of cuBLAS that is used, found at run time. Results are a
// cublasStatus_t, 0 for success, unless said otherwise.

#ifndef OFFLOAD_LT_H
#define OFFLOAD_LT_H

#include <stddef.h>
#include <stdint.h>

// Finds the library; returns the version, or 0 and says in text why not.
size_t offload_lt_load(char *text, int bytes);

int offload_lt_create(uintptr_t *handle);
int offload_lt_destroy(uintptr_t handle);

// A product in column-major terms: d (m n) = a (m k) times b (k n), plus c.
typedef struct {
	int type; // cudaDataType_t
	uint64_t m, n, k;
	int transpose_a, transpose_b, add;
	uint32_t alignment;
	uint64_t workspace; // bytes
} offload_lt_product;

// Makes a plan for p: asks for an algorithm, whose need of workspace is noted.
int offload_lt_plan(uintptr_t handle, const offload_lt_product *p, uintptr_t *plan);
void offload_lt_forget(uintptr_t plan);

// Enqueues the product of a plan.
int offload_lt_run(uintptr_t handle, uintptr_t plan, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,
	uintptr_t workspace, uintptr_t stream);

// The name of a result.
const char *offload_lt_name(int result);

// Device memory that is no part of a pool. The context must be current.
int offload_lt_alloc(uintptr_t *address, size_t bytes);
int offload_lt_free(uintptr_t address);

#endif
