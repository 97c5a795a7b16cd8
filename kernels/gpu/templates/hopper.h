// A number that was timed on Hopper, and a smaller one elsewhere: there the compiler needs a few registers more.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_OR(own, smaller) smaller
#else
#define HOPPER_OR(own, smaller) own
#endif
