// The kernels of package ops on an NVIDIA GPU. `make ptx` compiles them.
//
// Every result depends on the values of the operands alone: elements are
// independent of each other, and sums are made in an order that is fixed by the
// number of elements. Products and sums are written out where a fused
// multiply-add would change them.

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

// Values are float in between; storing rounds to the nearest, ties to even.
__device__ inline float value(float x) { return x; }
__device__ inline float value(bf16 x) { return __bfloat162float(x); }
__device__ inline void store(float *to, float x) { *to = x; }
__device__ inline void store(bf16 *to, float x) { *to = __float2bfloat16_rn(x); }

// A pack is 16 bytes of elements, which a thread moves at once.
template <typename T> struct alignas(16) pack {
	static const int size = 16 / sizeof(T);
	T v[size];
};

__device__ inline bool aligned(const void *a, const void *b)
{
	return (((uintptr_t)a | (uintptr_t)b) & 15) == 0;
}

__device__ inline int64_t thread() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64_t threads() { return (int64_t)gridDim.x * blockDim.x; }

// each makes y[i] = f(y[i], x[i]) for all n elements; y may be x. With old false,
// y is not read.
template <bool old, typename T, typename F> __device__ inline void each(T *y, const T *x, int64_t n, F f)
{
	int64_t done = 0;
	if (aligned(y, x)) {
		const int size = pack<T>::size;
		int64_t packs = n / size;
		for (int64_t i = thread(); i < packs; i += threads()) {
			pack<T> in = ((const pack<T> *)x)[i], out;
			if (old)
				out = ((const pack<T> *)y)[i];
#pragma unroll
			for (int k = 0; k < size; k++)
				store(&out.v[k], f(old ? value(out.v[k]) : 0.0f, value(in.v[k])));
			((pack<T> *)y)[i] = out;
		}
		done = packs * size;
	}
	for (int64_t i = done + thread(); i < n; i += threads())
		store(&y[i], f(old ? value(y[i]) : 0.0f, value(x[i])));
}

// normal gives the distribution function of the standard normal distribution at
// x, and e = exp(-x*x/2).
//
// For t = |x| the upper tail is e * r(q) with q = 1/(1 + 0.3 t). The polynomial r
// was fitted here to exp(t*t/2) erfc(t/sqrt 2)/2; its relative error in float is
// below 5e-7, so that the tail keeps its relative accuracy, too.
__device__ inline float normal(float x, float *e)
{
	float t = fabsf(x);
	float q = __fdividef(1.0f, fmaf(0.3f, t, 1.0f));
	float r = 0.0356745645f;
	r = fmaf(r, q, -0.157202154f);
	r = fmaf(r, q, 0.206351817f);
	r = fmaf(r, q, -0.0536820143f);
	r = fmaf(r, q, 0.128560737f);
	r = fmaf(r, q, 0.0999137759f);
	r = fmaf(r, q, 0.120753907f);
	r = fmaf(r, q, 0.119629301f);
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(*e) : "f"(-0.72134752f * x * x)); // 1/(2 ln 2)
	float tail = r * q * *e;
	return x < 0 ? tail : 1.0f - tail;
}

__device__ inline float gelu(float x)
{
	float e;
	return x * normal(x, &e);
}

__device__ inline float gelu_slope(float x)
{
	float e, p = normal(x, &e);
	return fmaf(0.39894228f * x, e, p); // 1/sqrt(2 pi)
}

__device__ inline float positive(float x) { return x < 0 ? 0 : x; } // of NaN, NaN

#define TYPED(T, name)                                                                                                   \
	extern "C" __global__ void gelu_##name(T *y, const T *x, int64_t n)                                              \
	{                                                                                                                \
		each<false>(y, x, n, [](float, float v) { return gelu(v); });                                            \
	}                                                                                                                \
	extern "C" __global__ void gelu_grad_##name(T *grad, const T *x, int64_t n)                                      \
	{                                                                                                                \
		each<true>(grad, x, n, [](float g, float v) { return g * gelu_slope(v); });                              \
	}                                                                                                                \
	extern "C" __global__ void squared_relu_##name(T *y, const T *x, int64_t n)                                      \
	{                                                                                                                \
		each<false>(y, x, n, [](float, float v) { return positive(v) * positive(v); });                          \
	}                                                                                                                \
	extern "C" __global__ void squared_relu_grad_##name(T *grad, const T *x, int64_t n)                              \
	{                                                                                                                \
		each<true>(grad, x, n, [](float g, float v) { return g * (2.0f * positive(v)); });                       \
	}                                                                                                                \
	extern "C" __global__ void add_scaled_##name(T *y, const T *x, int64_t n, float scale)                           \
	{                                                                                                                \
		each<true>(y, x, n, [scale](float a, float v) { return __fadd_rn(a, __fmul_rn(scale, v)); });            \
	}                                                                                                                \
	extern "C" __global__ void fill_##name(T *x, int64_t n, float to)                                                \
	{                                                                                                                \
		each<false>(x, x, n, [to](float, float) { return to; });                                                 \
	}                                                                                                                \
	extern "C" __global__ void noise_##name(T *x, int64_t n, uint64_t seed, float range)                             \
	{                                                                                                                \
		for (int64_t i = thread(); i < n; i += threads())                                                        \
			store(&x[i], noise(seed, i) * range);                                                            \
	}                                                                                                                \
	extern "C" __global__ void bias_##name(T *y, const T *b, int64_t rows, int64_t columns)                          \
	{                                                                                                                \
		for (int64_t i = thread(); i < rows * columns; i += threads())                                           \
			store(&y[i], value(y[i]) + value(b[i % columns]));                                               \
	}                                                                                                                \
	extern "C" __global__ void bias_grad_##name(T *b, const T *grad, int64_t rows, int64_t columns)                  \
	{                                                                                                                \
		column_sums(b, grad, rows, columns);                                                                     \
	}

// noise returns a number in [-1, 1) that depends on seed and i alone.
__device__ inline float noise(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed + i + 1) * 0x9E3779B97F4A7C15ull;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	z ^= z >> 31;
	return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

// column_sums adds to b the sums of the columns of g. A block has 32 columns and
// 8 rows at a time; the 8 sums of a column are added in their order.
template <typename T> __device__ inline void column_sums(T *b, const T *g, int64_t rows, int64_t columns)
{
	__shared__ float part[8][32];
	int lane = threadIdx.x % 32, group = threadIdx.x / 32;
	for (int64_t first = (int64_t)blockIdx.x * 32; first < columns; first += (int64_t)gridDim.x * 32) {
		int64_t column = first + lane;
		float sum = 0;
		if (column < columns)
			for (int64_t i = group; i < rows; i += 8)
				sum += value(g[i * columns + column]);
		part[group][lane] = sum;
		__syncthreads();
		if (group == 0 && column < columns) {
			for (int k = 1; k < 8; k++)
				sum += part[k][lane];
			store(&b[column], value(b[column]) + sum);
		}
		__syncthreads();
	}
}

TYPED(float, float32)
TYPED(bf16, bfloat16)

extern "C" __global__ void cast_float32_bfloat16(bf16 *to, const float *from, int64_t n)
{
	for (int64_t i = thread(); i < n; i += threads())
		store(&to[i], from[i]);
}

extern "C" __global__ void cast_bfloat16_float32(float *to, const bf16 *from, int64_t n)
{
	for (int64_t i = thread(); i < n; i += threads())
		to[i] = value(from[i]);
}

// block_sum adds up one value of each of the 1024 threads of a block, by halves.
__device__ inline double block_sum(double mine)
{
	__shared__ double part[1024];
	__syncthreads();
	part[threadIdx.x] = mine;
	for (int half = 512; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			part[threadIdx.x] += part[threadIdx.x + half];
	}
	__syncthreads();
	return part[0];
}

// One block. A thread adds up every 1024th element.
extern "C" __global__ void sum_squares(float *sum, const float *x, int64_t n)
{
	double mine = 0;
	for (int64_t i = threadIdx.x; i < n; i += 1024)
		mine += (double)x[i] * x[i];
	double all = block_sum(mine);
	if (threadIdx.x == 0)
		*sum = (float)all;
}

extern "C" __global__ void sgd(float *w, const float *grad, const float *sum, int64_t n, float rate, float clip)
{
	float step = rate;
	double norm = sqrt((double)*sum);
	if (clip > 0 && norm > clip)
		step = (float)((double)rate * clip / norm);
	for (int64_t i = thread(); i < n; i += threads())
		w[i] = __fsub_rn(w[i], __fmul_rn(step, grad[i]));
}

// One block. A thread has every 1024th row. grad may be null, or logits. A label
// that is no class makes the loss NaN.
extern "C" __global__ void cross_entropy(float *result, float *grad, const float *logits, const int32_t *labels,
	int64_t rows, int64_t classes, float scale)
{
	double loss = 0, hits = 0;
	for (int64_t i = threadIdx.x; i < rows; i += 1024) {
		const float *row = logits + i * classes;
		int32_t label = labels[i];
		int64_t best = 0;
		double total = 0;
		if (label < 0 || label >= classes) {
			loss = nan("");
			continue;
		}
		for (int64_t j = 1; j < classes; j++)
			if (row[j] > row[best])
				best = j;
		double top = row[best];
		for (int64_t j = 0; j < classes; j++)
			total += exp(row[j] - top);
		loss += log(total) + top - row[label];
		hits += best == label;
		if (grad == nullptr)
			continue;
		for (int64_t j = 0; j < classes; j++)
			grad[i * classes + j] = (float)(scale * (exp(row[j] - top) / total - (j == label)));
	}
	loss = block_sum(loss);
	hits = block_sum(hits);
	if (threadIdx.x == 0) {
		result[0] = (float)loss;
		result[1] = (float)hits;
	}
}

// Adds to count the number of words that differ. The order of the additions
// makes no difference.
extern "C" __global__ void differ(unsigned long long *count, const uint32_t *a, const uint32_t *b, int64_t words)
{
	unsigned long long mine = 0;
	for (int64_t i = thread(); i < words; i += threads())
		mine += a[i] != b[i];
	if (mine > 0)
		atomicAdd(count, mine);
}
