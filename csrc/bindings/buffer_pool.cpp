#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"

namespace gradcomp::bindings {
namespace {

namespace py = pybind11;

// Free blocks, by size. The interpreter's lock guards it.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    for (const auto& [bytes, blocks] : free_) {
      for (void* const block : blocks) std::free(block);
    }
  }

  // `bytes` is a multiple of 64, and so is the address: TensorFlow copies arrays of any other.
  void* take(std::size_t bytes) {
    std::vector<void*>& blocks = free_[bytes];
    if (blocks.empty()) {
      void* const block = std::aligned_alloc(64, bytes);
      if (block == nullptr) throw std::bad_alloc();
      return block;
    }
    void* const block = blocks.back();
    blocks.pop_back();
    return block;
  }

  void give_back(void* block, std::size_t bytes) noexcept {
    try {
      free_[bytes].push_back(block);
    } catch (const std::bad_alloc&) {
      std::free(block);
    }
  }

 private:
  std::unordered_map<std::size_t, std::vector<void*>> free_;
};

// A block in use, and the pool to which it returns.
struct Loan {
  std::shared_ptr<Pool> pool;
  void* block;
  std::size_t bytes;

  ~Loan() { pool->give_back(block, bytes); }
};

class BufferPool {
 public:
  py::array_t<float> get(std::size_t numel) const {
    const std::size_t bytes = (numel * sizeof(float) / 64 + 1) * 64;
    auto loan = std::unique_ptr<Loan>(new Loan{pool_, pool_->take(bytes), bytes});
    float* const data = static_cast<float*>(loan->block);
    const py::capsule owner(loan.get(), [](void* one) { delete static_cast<Loan*>(one); });
    loan.release();
    return py::array_t<float>(static_cast<py::ssize_t>(numel), data, owner);
  }

 private:
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace

void bind_buffer_pool(py::module_& m) {
  py::class_<BufferPool>(m, "BufferPool")
      .def(py::init<>())
      .def("get", &BufferPool::get, py::arg("numel"));
}

}  // namespace gradcomp::bindings
