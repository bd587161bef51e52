// How fast this processor multiplies and adds when nothing has to be fetched: the roof over every matrix product.
//
// Belongs here: products on registers alone, in the precisions of the project's kernels. Does not belong here: anything
// that reads memory (`passes.py` measures that) and the kernels themselves (`specdecode/kernels/few_rows.cpp`).

#include <chrono>
#include <cstdint>

#include <omp.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int REGISTER = 64;
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
typedef float Lanes __attribute__((vector_size(REGISTER)));

// Independent of each other, so that none waits for its last product. All stay in registers, with both factors.
constexpr int SUMS = REGISTER == 64 ? 16 : 12;

// Left alone, a compiler would see that every round says the same, and leave rounds out.
#define OPAQUE(value) asm volatile("" : "+v"(value))

struct Float32 {
    static constexpr int64_t FLOPS = 2 * sizeof(Lanes) / sizeof(float);
    Lanes sums[SUMS] = {}, left = {}, right = {};
    void round() {
        for (Lanes& sum : sums) {
            sum += left * right;
            OPAQUE(sum);
        }
    }
};

#ifdef __AVX512BF16__
struct BFloat16 {
    static constexpr int64_t FLOPS = 2 * 32;
    __m512 sums[SUMS] = {};
    __m512bh left = {}, right = {};
    void round() {
        for (__m512& sum : sums) {
            sum = _mm512_dpbf16_ps(sum, left, right);
            OPAQUE(sum);
        }
    }
};
#else
typedef Float32 BFloat16;  // widened before it is multiplied
#endif

#ifdef __AVX512VNNI__
struct Int8 {
    static constexpr int64_t FLOPS = 2 * 64;
    __m512i sums[SUMS] = {}, left = {}, right = {};
    void round() {
        for (__m512i& sum : sums) {
            sum = _mm512_dpbusd_epi32(sum, left, right);
            OPAQUE(sum);
        }
    }
};
#else
typedef Float32 Int8;
#endif

template <typename Products>
double flops_per_second(int64_t rounds, int64_t threads) {
    auto began = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads)
    {
        Products products;
        OPAQUE(products.left);
        OPAQUE(products.right);
        for (int64_t round = 0; round < rounds; round++) products.round();
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return (double)threads * rounds * SUMS * Products::FLOPS / took.count();
}

}  // namespace

// kind: 0 float32, 1 bfloat16 summed in float32, 2 int8 summed in int32. A product and its sum are two operations.
extern "C" double flops_on_registers(int64_t kind, int64_t rounds, int64_t threads) {
    if (kind == 0) return flops_per_second<Float32>(rounds, threads);
    if (kind == 1) return flops_per_second<BFloat16>(rounds, threads);
    return flops_per_second<Int8>(rounds, threads);
}
