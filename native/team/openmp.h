// The OpenMP runtime that another library (torch) has already brought into this process. We link no
// OpenMP: kernels that run inside torch run on torch's threads, or on the caller alone.
#pragma once
#include <string>

namespace ei {

class OpenMp {
 public:
  // The runtime whose symbols torch itself resolves to; null where there is none. Looked for until
  // one is found, so that torch may be imported later.
  static const OpenMp* find();

  // Runs function(context, thread, threads) on the threads that a parallel region of the caller
  // gets: at most max_threads(), perhaps fewer. function must not throw.
  void run(void (*function)(void* context, int thread, int threads), void* context) const;

  // The calling thread's setting (torch.set_num_threads); 1 inside a parallel region.
  int max_threads() const;
  const std::string& library() const { return library_; }  // path of the shared object

 private:
  using Body = void (*)(void*);
  std::string library_;
  void (*parallel_)(Body, void*, unsigned, unsigned) = nullptr;
  int (*max_threads_)() = nullptr;
  int (*num_threads_)() = nullptr;
  int (*thread_num_)() = nullptr;
  int (*in_parallel_)() = nullptr;

  bool load(void* handle);
};

}  // namespace ei
