//go:build cuda

#include "lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda.h>

// Numbers of cublasLt.h; they are the same in versions 12 and 13.
enum {
	REAL_32F = 0,		      // CUDA_R_32F
	COMPUTE_32F = 68,	      // CUBLAS_COMPUTE_32F
	DESC_TRANSA = 3,	      // CUBLASLT_MATMUL_DESC_TRANSA
	DESC_TRANSB = 4,	      // CUBLASLT_MATMUL_DESC_TRANSB
	PREF_WORKSPACE = 1,	      // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
	PREF_ALIGNMENT_A = 5,	      // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; b, c, d follow
	PREF_ALIGNMENT_D = 8,
	NOT_SUPPORTED = 15,	      // CUBLAS_STATUS_NOT_SUPPORTED
	ALLOC_FAILED = 3,	      // CUBLAS_STATUS_ALLOC_FAILED
};

typedef struct {
	uint64_t data[8];
} algorithm;

// cublasLtMatmulHeuristicResult_t
typedef struct {
	algorithm algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} answer;

typedef void *opaque;

static struct {
	size_t (*version)(void);
	const char *(*name)(int);
	int (*create)(opaque *);
	int (*destroy)(opaque);
	int (*desc_create)(opaque *, int, int);
	int (*desc_destroy)(opaque);
	int (*desc_set)(opaque, int, const void *, size_t);
	int (*layout_create)(opaque *, int, uint64_t, uint64_t, int64_t);
	int (*layout_destroy)(opaque);
	int (*pref_create)(opaque *);
	int (*pref_destroy)(opaque);
	int (*pref_set)(opaque, int, const void *, size_t);
	int (*heuristic)(opaque, opaque, opaque, opaque, opaque, opaque, opaque, int, answer *, int *);
	int (*matmul)(opaque, opaque, const void *, const void *, opaque, const void *, opaque, const void *, const void *, opaque,
		void *, opaque, const algorithm *, void *, size_t, CUstream);
} lt;

static const struct {
	const char *name;
	void **at;
} functions[] = {
	{"cublasLtGetVersion", (void **)&lt.version},
	{"cublasLtGetStatusName", (void **)&lt.name},
	{"cublasLtCreate", (void **)&lt.create},
	{"cublasLtDestroy", (void **)&lt.destroy},
	{"cublasLtMatmulDescCreate", (void **)&lt.desc_create},
	{"cublasLtMatmulDescDestroy", (void **)&lt.desc_destroy},
	{"cublasLtMatmulDescSetAttribute", (void **)&lt.desc_set},
	{"cublasLtMatrixLayoutCreate", (void **)&lt.layout_create},
	{"cublasLtMatrixLayoutDestroy", (void **)&lt.layout_destroy},
	{"cublasLtMatmulPreferenceCreate", (void **)&lt.pref_create},
	{"cublasLtMatmulPreferenceDestroy", (void **)&lt.pref_destroy},
	{"cublasLtMatmulPreferenceSetAttribute", (void **)&lt.pref_set},
	{"cublasLtMatmulAlgoGetHeuristic", (void **)&lt.heuristic},
	{"cublasLtMatmul", (void **)&lt.matmul},
};

size_t offload_lt_load(char *text, int bytes)
{
	const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
	void *library = NULL;
	int used = 0;

	for (size_t i = 0; library == NULL && i < sizeof names / sizeof *names; i++) {
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (library == NULL && used < bytes)
			used += snprintf(text + used, bytes - used, "%s%s", i > 0 ? "; " : "", dlerror());
	}
	if (library == NULL)
		return 0;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		*functions[i].at = dlsym(library, functions[i].name);
		if (*functions[i].at == NULL) {
			snprintf(text, bytes, "the library found has no %s", functions[i].name);
			return 0;
		}
	}
	return lt.version();
}

int offload_lt_create(uintptr_t *handle)
{
	opaque h = NULL;
	int result = lt.create(&h);

	*handle = (uintptr_t)h;
	return result;
}

int offload_lt_destroy(uintptr_t handle)
{
	return lt.destroy((opaque)handle);
}

typedef struct {
	opaque desc, a, b, c; // d is laid out as c
	algorithm algo;
	size_t workspace;
	float beta;
} plan;

static int layout(opaque *to, int type, uint64_t rows, uint64_t columns, int transposed)
{
	uint64_t stored = transposed ? columns : rows;

	return lt.layout_create(to, type, stored, transposed ? rows : columns, (int64_t)stored);
}

static int describe(plan *t, const offload_lt_product *p)
{
	int result, ta = p->transpose_a, tb = p->transpose_b;

	if ((result = lt.desc_create(&t->desc, COMPUTE_32F, REAL_32F)) != 0 ||
		(result = lt.desc_set(t->desc, DESC_TRANSA, &ta, sizeof ta)) != 0 ||
		(result = lt.desc_set(t->desc, DESC_TRANSB, &tb, sizeof tb)) != 0 ||
		(result = layout(&t->a, p->type, p->m, p->k, ta)) != 0 ||
		(result = layout(&t->b, p->type, p->k, p->n, tb)) != 0)
		return result;
	return layout(&t->c, p->type, p->m, p->n, 0);
}

static int choose(opaque handle, plan *t, const offload_lt_product *p)
{
	opaque pref = NULL;
	answer found;
	int n = 0;
	int result = lt.pref_create(&pref);

	if (result != 0)
		return result;
	result = lt.pref_set(pref, PREF_WORKSPACE, &p->workspace, sizeof p->workspace);
	for (int i = PREF_ALIGNMENT_A; result == 0 && i <= PREF_ALIGNMENT_D; i++)
		result = lt.pref_set(pref, i, &p->alignment, sizeof p->alignment);
	memset(&found, 0, sizeof found);
	if (result == 0)
		result = lt.heuristic(handle, t->desc, t->a, t->b, t->c, t->c, pref, 1, &found, &n);
	if (result == 0 && n == 0)
		result = NOT_SUPPORTED;
	if (result == 0)
		result = found.state;
	t->algo = found.algo;
	t->workspace = found.workspace;
	lt.pref_destroy(pref);
	return result;
}

int offload_lt_plan(uintptr_t handle, const offload_lt_product *p, uintptr_t *to)
{
	plan *t = calloc(1, sizeof *t);
	int result;

	if (t == NULL)
		return ALLOC_FAILED;
	t->beta = p->add ? 1 : 0;
	result = describe(t, p);
	if (result == 0)
		result = choose((opaque)handle, t, p);
	if (result != 0) {
		offload_lt_forget((uintptr_t)t);
		t = NULL;
	}
	*to = (uintptr_t)t;
	return result;
}

void offload_lt_forget(uintptr_t at)
{
	plan *t = (plan *)at;

	if (t->desc != NULL)
		lt.desc_destroy(t->desc);
	for (int i = 0; i < 3; i++) {
		opaque l = i == 0 ? t->a : i == 1 ? t->b : t->c;
		if (l != NULL)
			lt.layout_destroy(l);
	}
	free(t);
}

int offload_lt_run(uintptr_t handle, uintptr_t at, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,
	uintptr_t workspace, uintptr_t stream)
{
	const plan *t = (const plan *)at;
	const float alpha = 1;

	return lt.matmul((opaque)handle, t->desc, &alpha, (void *)a, t->a, (void *)b, t->b, &t->beta, (void *)c, t->c,
		(void *)d, t->c, &t->algo, (void *)workspace, t->workspace, (CUstream)stream);
}

const char *offload_lt_name(int result)
{
	return lt.name(result);
}

int offload_lt_alloc(uintptr_t *address, size_t bytes)
{
	CUdeviceptr p = 0;
	CUresult result = cuMemAlloc(&p, bytes);

	*address = (uintptr_t)p;
	return result;
}

int offload_lt_free(uintptr_t address)
{
	return cuMemFree((CUdeviceptr)address);
}
