#include "dtensor/kernels/linear_backward.h"

#include <optional>
#include <string>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include "dtensor/kernels/chunked_matmul.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/parameter_hooks.h"

namespace weft::dtensor::kernels {
namespace {

at::Tensor rows_of(const at::Tensor& tensor) {
  const int64_t columns = tensor.size(-1);
  int64_t rows = 1;
  for (const int64_t size : tensor.sizes().slice(0, tensor.dim() - 1)) {
    rows *= size;
  }
  return tensor.dim() == 2 ? tensor : tensor.reshape({rows, columns});
}

std::string name_of(const mesh::DeviceMesh& mesh) {
  return mesh.ndim() == 0 ? "no mesh" : "the mesh " + mesh.to_string();
}

struct LinearNode : torch::autograd::Node {
  using torch::autograd::Node::Node;
  using Entry = LinearPlan::Entry;
  /// A DTensor, or the local tensor of one.
  torch::autograd::SavedVariable input;
  torch::autograd::SavedVariable weight;
  /// The mesh that owns `plan`. Saved tensors may be on another mesh: a DTensor
  /// without placements has a mesh of its own, and a saved-tensor hook may
  /// return another tensor.
  std::optional<mesh::DeviceMesh> mesh;
  const LinearPlan* plan = nullptr;
  /// True if the output was reduce-scattered at the request of a style. Its
  /// gradient then arrives sharded and must be gathered.
  bool is_scattered = false;

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

 protected:
  /// Unpacks the weight, whose owner gathers it if it was resharded.
  /// Throws: c10::ValueError if it is not on the mesh of forward.
  at::Tensor unpack_weight() {
    auto w = weight.unpack();
    before_forward_use(w);
    const auto& now = spec_of(w).mesh();
    TORCH_CHECK_VALUE(
        now == *mesh,
        "[linear backward] ",
        label("weight", w),
        " was on ",
        name_of(*mesh),
        " in forward and is on ",
        name_of(now),
        " in backward. Keep the FullyShardedDataParallel that ran forward "
        "until backward has ended. (",
        now.describe_rank(),
        ")");
    return w;
  }

  at::Tensor output_gradient(const at::Tensor& grad, const at::Tensor& w) {
    require_dtensor_gradient(grad, "linear backward");
    return rows_of(
        enter(grad, plan->output_grad, plan->output, w, is_scattered));
  }

  /// The gradients dy and dx. gather_gradients() multiplies the rows of dx as
  /// those of dy arrive. It returns nothing if dy is complete or arrives in one
  /// message, or if the graph is recorded.
  struct GatheredGradients {
    at::Tensor dy;
    at::Tensor dx;
  };
  std::optional<GatheredGradients> gather_gradients(
      const at::Tensor& grad,
      const at::Tensor& x,
      const at::Tensor& w) {
    const auto& impl = require_dtensor_gradient(grad, "linear backward");
    const DTensorSpec together(spec_of(w).mesh(), plan->output_grad);
    if (!is_scattered || at::GradMode::is_enabled() ||
        impl.spec() == together) {
      return std::nullopt;
    }
    const auto rows = plan_row_chunks(
        {.cut = impl.spec(),
         .together = together,
         .sizes = grad.sizes(),
         .dtype = grad.scalar_type(),
         .other = w.size(1)});
    if (!rows) {
      return std::nullopt;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const detail::RedistributeScope move(
        grad, impl.spec(), together, /*is_implicit=*/false);
    auto moved = all_gather_matmul(
        *rows, impl.local(), dtensor_impl(w)->local(), {}, label("linear", w));
    return GatheredGradients{
        rows_of(moved.whole), leave_input_gradient(moved.product, x, w)};
  }

  at::Tensor input_gradient(
      const at::Tensor& grad,
      const at::Tensor& x,
      const at::Tensor& w) {
    return leave_input_gradient(
        grad.mm(enter(w, plan->weight, plan->weight_grad, w)), x, w);
  }

  at::Tensor weight_gradient(
      const at::Tensor& grad,
      const at::Tensor& x,
      const at::Tensor& w) {
    const auto rows = rows_of(
        dtensor_impl(x) ? enter(x, plan->input, plan->input_grad, w) : x);
    return leave(
        grad.t().mm(rows), plan->weight_grad, w.sizes(), w.strides(), w);
  }

  at::Tensor bias_gradient(const at::Tensor& grad, const at::Tensor& w) {
    return leave(grad.sum(0), plan->bias_grad, w.sizes().slice(0, 1), {1}, w);
  }

  /// Returns dy as a DTensor, for a LinearWeightBackward.
  at::Tensor as_output_gradient(
      const at::Tensor& dy,
      const at::Tensor& grad,
      const at::Tensor& x,
      const at::Tensor& w) {
    auto sizes = (dtensor_impl(x) ? dtensor_impl(x)->local() : x).sizes().vec();
    sizes.back() = dy.size(1);
    return make_dtensor(
        dy.view(sizes),
        DTensorSpec(spec_of(w).mesh(), plan->output_grad),
        grad.sizes(),
        row_major_strides(grad.sizes()));
  }

 private:
  at::Tensor leave_input_gradient(
      const at::Tensor& product,
      const at::Tensor& x,
      const at::Tensor& w) {
    const auto* x_impl = dtensor_impl(x);
    const auto& local = x_impl ? x_impl->local() : x;
    const auto dx = product.sizes() == local.sizes()
                        ? product
                        : product.view(local.sizes());
    return x_impl ? leave(dx, plan->input_grad, x.sizes(), x.strides(), w) : dx;
  }

  static at::Tensor enter(
      const at::Tensor& tensor,
      Entry want,
      Entry grad,
      const at::Tensor& w,
      bool asked = false) {
    const auto* impl = dtensor_impl(tensor);
    if (!at::GradMode::is_enabled() && impl->spec().id() == want) {
      return impl->local();
    }
    const auto& mesh = spec_of(w).mesh();
    return to_local_impl(
        tensor,
        DTensorSpec(mesh, want),
        DTensorSpec(mesh, grad).placements(),
        label("linear", w),
        {.asked = asked});
  }

  static at::Tensor leave(
      const at::Tensor& local,
      Entry spec,
      c10::IntArrayRef sizes,
      c10::IntArrayRef strides,
      const at::Tensor& w) {
    const DTensorSpec where(spec_of(w).mesh(), spec);
    return at::GradMode::is_enabled()
               ? from_local_impl(
                     local, where, sizes, strides, label("linear", w))
               : make_dtensor(local, where, sizes, strides);
  }
};

// A guard that skips autograd and calls the kernels of local tensors directly,
// unless create_graph is set.
struct BelowUnlessRecorded {
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard;

  BelowUnlessRecorded() {
    if (!at::GradMode::is_enabled()) {
      guard.emplace();
    }
  }
};

// The node of the weight and bias gradients, for which no other node waits. See
// Note [Deferred weight gradients].
struct LinearWeightBackward final : LinearNode {
  using LinearNode::LinearNode;

  std::string name() const override { return "LinearWeightBackward"; }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list results(2);
    if (!grads[0].defined()) {
      return results;
    }
    const std::lock_guard lock(mutex_);
    const auto x = input.unpack();
    const auto w = unpack_weight();
    const auto grad = output_gradient(grads[0], w);
    const BelowUnlessRecorded below;
    if (task_should_compute_output(0)) {
      results[0] = weight_gradient(grad, x, w);
    }
    if (task_should_compute_output(1)) {
      results[1] = bias_gradient(grad, w);
    }
    return results;
  }
};

// The node of linear(). It has edges to x, weight and bias, or to x and a
// LinearWeightBackward.
struct LinearBackward final : LinearNode {
  bool weight_is_late = false;

  std::string name() const override { return "LinearBackward"; }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list results(weight_is_late ? 2 : 3);
    if (!grads[0].defined()) {
      return results;
    }
    const std::lock_guard lock(mutex_);
    const auto x = input.unpack();
    const auto w = unpack_weight();
    const bool wants_dx = task_should_compute_output(0);
    auto gathered = wants_dx ? gather_gradients(grads[0], x, w) : std::nullopt;
    const auto grad = gathered ? gathered->dy : output_gradient(grads[0], w);
    const BelowUnlessRecorded below;
    if (wants_dx) {
      results[0] = gathered ? gathered->dx : input_gradient(grad, x, w);
    }
    if (weight_is_late) {
      results[1] =
          gathered ? as_output_gradient(grad, grads[0], x, w) : grads[0];
      return results;
    }
    if (task_should_compute_output(1)) {
      results[1] = weight_gradient(grad, x, w);
    }
    if (task_should_compute_output(2)) {
      results[2] = bias_gradient(grad, w);
    }
    return results;
  }
};

void save_for_linear(
    LinearNode& node,
    const at::Tensor& x,
    const at::Tensor& w,
    const mesh::DeviceMesh& mesh,
    const LinearPlan& plan,
    bool is_scattered) {
  node.is_scattered = is_scattered;
  node.input = torch::autograd::SavedVariable(x, /*is_output=*/false);
  node.weight = torch::autograd::SavedVariable(w, /*is_output=*/false);
  node.mesh = mesh;
  node.plan = &plan;
}

} // namespace

void record_linear(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    const mesh::DeviceMesh& mesh,
    const LinearPlan& plan,
    bool is_scattered,
    at::Tensor& output) {
  auto [pointer, node] = make_node<LinearBackward>();
  save_for_linear(*node, x, w, mesh, plan, is_scattered);
  auto edges = torch::autograd::collect_next_edges(x, w, b);
  const auto turn = edges[1].is_valid() || edges[2].is_valid()
                        ? deferred_sequence_nr(x)
                        : std::nullopt;
  if (turn) {
    auto [late_pointer, late] = make_node<LinearWeightBackward>(*turn);
    save_for_linear(*late, x, w, mesh, plan, is_scattered);
    late->set_next_edges({edges[1], edges[2]});
    late->add_input_metadata(output);
    edges = {edges[0], torch::autograd::Edge(std::move(late_pointer), 0)};
    node->weight_is_late = true;
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::create_gradient_edge(output, std::move(pointer));
}

} // namespace weft::dtensor::kernels
