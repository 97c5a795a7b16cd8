// Threads of a library that runs without ONNX Runtime.  Workers sleep between loops; a loop that
// finds the pool busy, or that runs inside a loop, runs on its caller alone.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "runtime/processor_topology.h"
#include "runtime/system.h"

// glibc before 2.34 has these elsewhere, under the version that later ones still know.  A process
// without them gets no workers.  Headers of an older one ask for that version by themselves.
#if defined(__GLIBC__) && __GLIBC_MINOR__ < 34
#elif defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.17");
#endif
#if defined(__GLIBC__)
#pragma weak pthread_create
#pragma weak pthread_join
#endif

namespace tracea {

constexpr int32_t kMaxThreads = 64;

// Whether the process has what starts and ends threads.
inline bool has_threads() {
#if defined(__GLIBC__)
  return pthread_create && pthread_join;
#else
  return true;
#endif
}

class ThreadPool {
 public:
  int32_t threads() const {
    const int32_t set = __atomic_load_n(&threads_, __ATOMIC_RELAXED);
    return set ? set : static_cast<int32_t>(min(usable_cores(usable_processors()), kMaxThreads));
  }
  void set_threads(int32_t threads) { __atomic_store_n(&threads_, threads, __ATOMIC_RELAXED); }

  // task(job, i) for i in [0, total), the caller's thread included.
  void run(void (*task)(void*, size_t), size_t total, void* job) {
    const int32_t wanted = static_cast<int32_t>(min(threads(), static_cast<int64_t>(total))) - 1;
    if (wanted < 1 || __atomic_exchange_n(&busy_, 1, __ATOMIC_ACQUIRE)) {
      for (size_t i = 0; i < total; ++i) task(job, i);
      return;
    }
    start(wanted);
    pthread_mutex_lock(&lock_);
    task_ = task, job_ = job, total_ = total, next_ = 0;
    open_ = static_cast<int32_t>(min(wanted, workers_));
    ++turn_;
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&lock_);
    work();
    pthread_mutex_lock(&lock_);
    open_ = 0;  // who has not come yet need not
    while (inside_) pthread_cond_wait(&done_, &lock_);
    pthread_mutex_unlock(&lock_);
    __atomic_store_n(&busy_, 0, __ATOMIC_RELEASE);
  }

  // Ends the workers; loops that follow start new ones.  A child of a fork has none, but may have
  // begun in the middle of a loop.
  void stop() {
    if (__atomic_load_n(&owner_, __ATOMIC_RELAXED) != getpid()) return;
    while (__atomic_exchange_n(&busy_, 1, __ATOMIC_ACQUIRE)) sched_yield();
    pthread_mutex_lock(&lock_);
    stopping_ = true;
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&lock_);
    for (int32_t i = 0; i < workers_; ++i) pthread_join(worker_[i], nullptr);
    workers_ = 0, stopping_ = false;
    __atomic_store_n(&busy_, 0, __ATOMIC_RELEASE);
  }

 private:
  // A fork leaves its child no workers.
  void start(int32_t wanted) {
    if (owner_ != getpid()) {
      workers_ = 0, inside_ = 0, open_ = 0, turn_ = 0, stopping_ = false;
      __atomic_store_n(&owner_, getpid(), __ATOMIC_RELAXED);
      pthread_mutex_init(&lock_, nullptr);
      pthread_cond_init(&wake_, nullptr);
      pthread_cond_init(&done_, nullptr);
    }
    while (has_threads() && workers_ < min(wanted, kMaxThreads - 1) &&
           pthread_create(&worker_[workers_], nullptr, main, this) == 0)
      ++workers_;
  }

  void work() {
    for (size_t i; (i = __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED)) < total_;) task_(job_, i);
  }

  static void* main(void* self) {
    ThreadPool& pool = *static_cast<ThreadPool*>(self);
    pthread_mutex_lock(&pool.lock_);
    for (uint64_t seen = 0; !pool.stopping_;) {
      if (pool.turn_ == seen || pool.open_ == 0) {
        pthread_cond_wait(&pool.wake_, &pool.lock_);
        continue;
      }
      seen = pool.turn_;
      --pool.open_, ++pool.inside_;
      pthread_mutex_unlock(&pool.lock_);
      pool.work();
      pthread_mutex_lock(&pool.lock_);
      if (--pool.inside_ == 0) pthread_cond_signal(&pool.done_);
    }
    pthread_mutex_unlock(&pool.lock_);
    return nullptr;
  }

  int32_t threads_, busy_;
  pid_t owner_;
  pthread_mutex_t lock_;
  pthread_cond_t wake_, done_;
  pthread_t worker_[kMaxThreads];
  int32_t workers_, open_, inside_;  // open: workers that may still join this loop
  bool stopping_;
  uint64_t turn_;
  void (*task_)(void*, size_t);
  void* job_;
  size_t total_, next_;
};

}  // namespace tracea
