#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/chunks.hpp"
#include "base/rng.hpp"
#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "coding/rotation.hpp"
#include "kernels/kernels.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"

namespace gradcomp::bindings {
namespace {

// Only this package passes the arguments; these checks keep its mistakes from corrupting memory.
void require(bool fits, const char* what) {
  if (!fits) throw py::value_error(what);
}

// `array` as vectors of n elements.
std::size_t rank_of(const Floats& array, std::size_t n) {
  const auto size = static_cast<std::size_t>(array.size());
  require(n > 0 && size > 0 && size % n == 0, "a factor does not fit the matrix");
  return size / n;
}

struct Shape {
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;
};

Shape shape_of(const Floats& matrix, const Floats& p, const Floats& q) {
  require(matrix.ndim() == 2 && matrix.size() > 0, "a matrix has two dimensions and elements");
  const auto rows = static_cast<std::size_t>(matrix.shape(0));
  const auto cols = static_cast<std::size_t>(matrix.shape(1));
  const std::size_t rank = rank_of(p, rows);
  require(rank == rank_of(q, cols), "the factors have different ranks");
  return {rows, cols, rank};
}

template <typename Fn>
bool multiply_with(Floats& m, const std::optional<Floats>& grad, float beta, const Shape& shape,
                   const Fn& product) {
  require(!grad || grad->size() == m.size(), "a gradient does not fit its matrix");
  const Matrix matrix{m.mutable_data(), shape.rows, shape.cols};
  const MatrixFeedback feedback{grad ? grad->data() : nullptr, beta};
  py::gil_scoped_release release;
  return product(matrix, feedback);
}

bool py_multiply(Floats& m, const std::optional<Floats>& grad, const Floats& q, Floats& p,
                 float beta) {
  const Shape shape = shape_of(m, p, q);
  const float* const in = q.data();
  float* const out = p.mutable_data();
  return multiply_with(m, grad, beta, shape,
                       [&](const Matrix& matrix, const MatrixFeedback& feedback) {
                         return multiply(matrix, feedback, in, shape.rank, out);
                       });
}

bool py_multiply_transposed(Floats& m, const std::optional<Floats>& grad, const Floats& p,
                            Floats& q, float beta) {
  const Shape shape = shape_of(m, p, q);
  const float* const in = p.data();
  float* const out = q.mutable_data();
  return multiply_with(m, grad, beta, shape,
                       [&](const Matrix& matrix, const MatrixFeedback& feedback) {
                         return multiply_transposed(matrix, feedback, in, shape.rank, out);
                       });
}

void py_outer(const Floats& p, const Floats& q, std::optional<Floats> assigned,
              std::optional<Floats> added, std::optional<Floats> subtracted) {
  OuterOutput out{};
  Shape shape{};
  const auto use = [&](std::optional<Floats>& array) -> float* {
    if (!array) return nullptr;
    const Shape own = shape_of(*array, p, q);
    require(shape.rank == 0 || (own.rows == shape.rows && own.cols == shape.cols),
            "the outputs have different shapes");
    shape = own;
    return array->mutable_data();
  };
  out.assigned = use(assigned);
  out.added = use(added);
  out.subtracted = use(subtracted);
  require(shape.rank > 0, "outer needs an output");
  const float* const left = p.data();
  const float* const right = q.data();
  py::gil_scoped_release release;
  outer(left, right, shape.rank, shape.rows, shape.cols, out);
}

template <typename Fn>
void change_vectors(Floats& vectors, const Fn& change) {
  const Span<float> data{vectors.mutable_data(), static_cast<std::size_t>(vectors.size())};
  Status status;
  {
    py::gil_scoped_release release;
    status = change(data);
  }
  if (status.ok()) return;
  PyErr_SetString(status.code() == Code::kCapacity ? PyExc_MemoryError : PyExc_ValueError,
                  status.message().c_str());
  throw py::error_already_set();
}

void py_orthonormalize(Floats& vectors, std::size_t rank, const std::string& method) {
  const auto how = method == "qr"         ? Orthonormalization::kHouseholder
                   : method == "cholesky" ? Orthonormalization::kCholesky
                                          : Orthonormalization::kGramSchmidt;
  require(how != Orthonormalization::kGramSchmidt || method == "gram_schmidt",
          "the method is none of gram_schmidt, qr, cholesky");
  change_vectors(
      vectors, [&](Span<float> data) { return orthonormalize(data, rank, how, thread_scratch()); });
}

void py_normalize(Floats& vectors, std::size_t rank) {
  require(rank > 0 && vectors.size() > 0 && static_cast<std::size_t>(vectors.size()) % rank == 0,
          "the elements are not vectors of one length");
  change_vectors(vectors,
                 [&](Span<float> data) { return normalize(data, rank, thread_scratch()); });
}

// Uniform in [-1, 1): a random word as a signed fraction.
Floats uniform_signed(std::uint64_t stream, std::size_t count) {
  std::vector<std::uint32_t> words(count);
  kernels().random_words(stream, 0, words.data(), count);
  Floats values(static_cast<py::ssize_t>(count));
  float* const out = values.mutable_data();
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<std::int32_t>(words[i])) * 0x1p-31f;
  }
  return values;
}

// Calls fn(tile, begin) for each tile of a rotation, on several threads.
template <typename Fn>
void for_tiles(const Rotation& rotation, const Fn& fn) {
  static_assert(kChunk % kRotationBlock == 0, "ranges are whole tiles");
  for_ranges(rotation.tiles() * kRotationBlock,
             [&](std::size_t, std::size_t begin, std::size_t end) {
               for (std::size_t i = begin; i < end; i += kRotationBlock) fn(i / kRotationBlock, i);
             });
}

// x and out may be the same array.
void rotate(const Floats& x, std::uint64_t stream, Floats& out) {
  const Span<const float> in = input(x);
  const Span<float> rotated = output(out);
  require(in.size() == rotated.size(), "the arrays have different sizes");
  py::gil_scoped_release release;
  const Rotation rotation(in.size(), stream);
  for_tiles(rotation, [&](std::size_t tile, std::size_t begin) {
    rotation.forward(tile, in.data() + begin, rotated.data() + begin);
  });
}

void rotate_back(Floats& x, std::uint64_t stream) {
  const Span<float> rotated = output(x);
  py::gil_scoped_release release;
  const Rotation rotation(rotated.size(), stream);
  for_tiles(rotation, [&](std::size_t tile, std::size_t begin) {
    rotation.inverse(tile, rotated.data() + begin);
  });
}

// Binary logarithm of the elements of a block, and the factor of its elements.
std::pair<unsigned, float> rotation_of(std::size_t numel) {
  const Rotation rotation(numel, 0);
  return {rotation.log2(), rotation.factor()};
}

}  // namespace

void bind_linalg(py::module_& m) {
  m.def("multiply", &py_multiply, py::arg("m").noconvert(), py::arg("grad").noconvert().none(true),
        py::arg("q").noconvert(), py::arg("p").noconvert(), py::kw_only(), py::arg("beta") = 1.0f);
  m.def("multiply_transposed", &py_multiply_transposed, py::arg("m").noconvert(),
        py::arg("grad").noconvert().none(true), py::arg("p").noconvert(), py::arg("q").noconvert(),
        py::kw_only(), py::arg("beta") = 1.0f);
  m.def("outer", &py_outer, py::arg("p").noconvert(), py::arg("q").noconvert(), py::kw_only(),
        py::arg("assigned").noconvert() = py::none(), py::arg("added").noconvert() = py::none(),
        py::arg("subtracted").noconvert() = py::none());
  m.def("orthonormalize", &py_orthonormalize, py::arg("vectors").noconvert(), py::arg("rank"),
        py::arg("method"));
  m.def("normalize", &py_normalize, py::arg("vectors").noconvert(), py::arg("rank"));
  m.def("uniform_signed", &uniform_signed, py::arg("stream"), py::arg("count"));
  m.def("rotate", &rotate, py::arg("x").noconvert(), py::arg("stream"), py::arg("out").noconvert());
  m.def("rotation_of", &rotation_of, py::arg("numel"));
  m.def("rotate_back", &rotate_back, py::arg("x").noconvert(), py::arg("stream"));
}

}  // namespace gradcomp::bindings
