// The Python module braid._braid: the facade (include/braid/braid.h) as Python sees it. It converts
// types and errors, and adds nothing; python/braid/__init__.py is what users import.
#include <braid/braid.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "backends/registry/registry.h"

namespace nb = nanobind;
namespace api = braid::api;
using namespace nb::literals;

namespace {

/// Text of braid, which may name files whose names are no UTF-8.
nb::str text_of(std::string_view text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

nb::object parsed_by(const char* module, std::string_view text) {
  return nb::module_::import_(module).attr("loads")(text_of(text));
}

// ---- Errors

const char* kind_name(api::ErrorKind kind) {
  switch (kind) {
    case api::ErrorKind::kConfig:
      return "config";
    case api::ErrorKind::kData:
      return "data";
    case api::ErrorKind::kDevice:
      return "device";
    case api::ErrorKind::kInternal:
      break;
  }
  return "internal";
}

constexpr const char* kErrorDoc =
    "What braid refuses, or what failed. str(error) is one line for the user: value, limit and "
    "option.\n\n"
    "error.kind is \"config\" (the run file, an override or an argument: you can fix it), \"data\" "
    "(a file cannot be read, written or trusted), \"device\" (a device, a link or another process "
    "failed; the newest checkpoint is intact; end the process) or \"internal\" (a bug in braid).";

/// Makes api::Error an exception of Python with the member `kind`.
void add_error(nb::module_& module) {
  PyObject* type = PyErr_NewExceptionWithDoc("braid.Error", kErrorDoc, PyExc_RuntimeError, nullptr);
  if (type == nullptr) {
    throw nb::python_error();
  }
  module.attr("Error") = nb::borrow(type);
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* error_type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const api::Error& error) {
          const nb::handle raised_type(static_cast<PyObject*>(error_type));
          const nb::object raised = raised_type(text_of(error.what()));
          raised.attr("kind") = kind_name(error.kind());
          PyErr_SetObject(raised_type.ptr(), raised.ptr());
        }
      },
      type);
}

// ---- What functions return

void add_plan(nb::module_& module) {
  nb::class_<api::MemoryClass>(module, "MemoryClass",
                               "Device memory of one class of buffers (\"weights\").")
      .def_ro("name", &api::MemoryClass::name)
      .def_ro("persistent_bytes", &api::MemoryClass::persistent_bytes, "int: kept between steps")
      .def_ro("step_bytes", &api::MemoryClass::step_bytes, "int: at the peak of a step");
  nb::class_<api::PassRecord>(module, "PassRecord",
                              "What became of one pass over the program of a rank.")
      .def_ro("name", &api::PassRecord::name)
      .def_ro("summary", &api::PassRecord::summary, "What it did, or why it was skipped")
      .def_ro("skipped", &api::PassRecord::skipped)
      .def_ro("duration_ns", &api::PassRecord::duration_ns);
  nb::class_<api::RankPlan>(module, "RankPlan", "What is decided for a rank before anything runs.")
      .def_ro("rank", &api::RankPlan::rank)
      .def_ro("peak_bytes", &api::RankPlan::peak_bytes,
              "int: on the device; exactly what its buffers get")
      .def_ro("persistent_bytes", &api::RankPlan::persistent_bytes,
              "int: of these, for weights and optimizer state")
      .def_ro("step_bytes", &api::RankPlan::step_bytes,
              "int: of these, for activations and gradients of a step")
      .def_ro("host_bytes", &api::RankPlan::host_bytes, "int: offloaded to the host")
      .def_ro("memory", &api::RankPlan::memory,
              "list[MemoryClass] without empty classes; the sum of their bytes is peak_bytes")
      .def_ro("num_tasks", &api::RankPlan::num_tasks)
      .def_ro("passes", &api::RankPlan::passes)
      .def_ro("program", &api::RankPlan::program,
              "The training program after all passes as text, if asked for, else empty");
  nb::class_<api::Plan>(module, "Plan",
                        "A run whose programs are built, verified after each pass, and have their "
                        "memory.\n\nA layout that cannot run has no plan: Run.plan raises Error.")
      .def_ro("num_ranks", &api::Plan::num_ranks, "int: of the run")
      .def_ro("ranks", &api::Plan::ranks,
              "list[RankPlan]: the first rank of each pipeline stage; the others of the stage have "
              "as much to do")
      .def_ro("description", &api::Plan::description,
              "Model, layout, passes and memory, as `braid plan` prints them")
      .def("__str__", [](const api::Plan& plan) { return text_of(plan.description); });
}

void add_simulation(nb::module_& module) {
  nb::class_<api::CommunicationTime>(
      module, "CommunicationTime",
      "Communication of one kind of group in a simulated step: means over all ranks.")
      .def_ro("kind", &api::CommunicationTime::kind, "\"data\", \"tensor\", \"pipeline\", ...")
      .def_ro("total_ns", &api::CommunicationTime::total_ns, "float")
      .def_ro("exposed_ns", &api::CommunicationTime::exposed_ns,
              "float: not hidden under compute; kinds may overlap each other");
  nb::class_<api::Simulation>(
      module, "Simulation",
      "A simulated training step. docs/simulator.md explains each figure. Times are means over all "
      "ranks.")
      .def_ro("step_ns", &api::Simulation::step_ns, "int")
      .def_ro("tokens_per_s", &api::Simulation::tokens_per_s, "float: over all ranks")
      .def_ro("mfu", &api::Simulation::mfu, "float, 0 to 1")
      .def_ro("compute_ns", &api::Simulation::compute_ns)
      .def_ro("exposed_ns", &api::Simulation::exposed_ns,
              "float: communication that nothing hides, all kinds")
      .def_ro("idle_ns", &api::Simulation::idle_ns,
              "float: the pipeline's bubble and other waiting")
      .def_ro("communication", &api::Simulation::communication,
              "list[CommunicationTime]: the kinds that occur")
      .def_ro("description", &api::Simulation::description, "As `braid simulate` prints it")
      .def_prop_ro(
          "json", [](const api::Simulation& step) { return parsed_by("json", step.json); },
          nb::sig("def json(self) -> dict"),
          "The object that `braid simulate --json` prints; a new one at each access")
      .def("__str__", [](const api::Simulation& step) { return text_of(step.description); });
}

void add_verification(nb::module_& module) {
  nb::class_<api::Verification>(module, "Verification",
                                "The layout of a run compared with one rank, on a shrunken model. "
                                "Differences are relative.")
      .def_ro("equal", &api::Verification::equal, "All differences are within the tolerances")
      .def_ro("worst_gradient", &api::Verification::worst_gradient, "Its name")
      .def_ro("gradient_difference", &api::Verification::gradient_difference,
              "float: of worst_gradient, in float64")
      .def_ro("gradient_tolerance", &api::Verification::gradient_tolerance)
      .def_ro("loss_difference", &api::Verification::loss_difference,
              "float: the largest of a step, in the dtype of the run")
      .def_ro("loss_tolerance", &api::Verification::loss_tolerance)
      .def_ro("losses", &api::Verification::losses,
              "list[float] by step: of the layout, nats per token")
      .def_ro("one_rank_losses", &api::Verification::one_rank_losses,
              "list[float] by step: of one rank, nats per token");
}

void add_train_result(nb::module_& module) {
  nb::class_<api::TrainResult>(module, "TrainResult",
                               "The end of a training. Paths are empty where nothing was written.")
      .def_ro("last_step", &api::TrainResult::last_step)
      .def_ro("stopped_early", &api::TrainResult::stopped_early)
      .def_ro("first_eval_loss", &api::TrainResult::first_eval_loss,
              "float: held-out, before the first step, nats per token; 0 without evaluations")
      .def_ro("last_eval_loss", &api::TrainResult::last_eval_loss)
      .def_ro("tokens_per_s", &api::TrainResult::tokens_per_s, "float: median of the steps")
      .def_ro("run_folder", &api::TrainResult::run_folder, "Metrics, report and checkpoints")
      .def_ro("report", &api::TrainResult::report, "Path of report.html")
      .def_ro("checkpoint", &api::TrainResult::checkpoint, "Path of the newest");
}

// ---- Metrics

/// Calls visit(name, member) for each number of a step.
template <class Visit>
void visit_step(Visit&& visit) {
  visit("step", &api::TrainStep::step);
  visit("loss", &api::TrainStep::loss);
  visit("grad_norm", &api::TrainStep::grad_norm);
  visit("learning_rate", &api::TrainStep::learning_rate);
  visit("tokens_per_s", &api::TrainStep::tokens_per_s);
  visit("step_ms", &api::TrainStep::step_ms);
  visit("tflops_per_s_per_rank", &api::TrainStep::tflops_per_s_per_rank);
  visit("consumed_samples", &api::TrainStep::consumed_samples);
  visit("consumed_tokens", &api::TrainStep::consumed_tokens);
}

nb::dict step_dict(const api::TrainStep& step) {
  nb::dict result;
  visit_step([&](const char* name, auto member) { result[name] = step.*member; });
  return result;
}

template <class Record, class Number>
nb::list column(const std::vector<Record>& records, Number Record::*member) {
  nb::list numbers;
  for (const Record& record : records) {
    numbers.append(record.*member);
  }
  return numbers;
}

/// A list for each number of steps and evaluations, and the line about damage.
nb::tuple read_columns(const std::string& run_folder) {
  api::Metrics metrics;
  {
    const nb::gil_scoped_release others_run;
    metrics = api::read_metrics(run_folder);
  }
  nb::dict columns;
  visit_step([&](const char* name, auto member) { columns[name] = column(metrics.steps, member); });
  columns["eval_step"] = column(metrics.evaluations, &api::Evaluation::step);
  columns["eval_loss"] = column(metrics.evaluations, &api::Evaluation::loss);
  return nb::make_tuple(columns, text_of(metrics.damage));
}

// ---- Training

struct Callbacks {
  std::optional<nb::callable> on_step;
  std::optional<nb::callable> on_output;
};

/// Whether to go on after the step. Python handles signals only where we let it: here.
bool go_on(const std::optional<nb::callable>& on_step, const api::TrainStep& step) {
  if (PyErr_CheckSignals() != 0) {
    throw nb::python_error();
  }
  return !on_step || !(*on_step)(step_dict(step)).is(Py_False);
}

/// Ctrl-C ends a run as a callback that says so: with a checkpoint.
api::TrainResult train(const api::Run& run, api::TrainOptions options, const Callbacks& callbacks) {
  std::optional<nb::python_error> interrupt;
  options.on_step = [&](const api::TrainStep& step) {
    const nb::gil_scoped_acquire python;
    try {
      return go_on(callbacks.on_step, step);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_KeyboardInterrupt)) {
        throw;
      }
      interrupt.emplace(std::move(error));
      return false;
    }
  };
  if (callbacks.on_output) {
    options.on_output = [&](const std::string& text) {
      const nb::gil_scoped_acquire python;
      (*callbacks.on_output)(text_of(text));
    };
  }
  api::TrainResult result;
  {
    const nb::gil_scoped_release others_run;
    result = run.train(options);
  }
  if (interrupt) {
    throw std::move(*interrupt);
  }
  return result;
}

// ---- The run

constexpr const char* kPlanDoc =
    "Builds the programs of all ranks, runs the passes, verifies each program after each pass, and "
    "plans memory. Needs no data and no device.\n\n"
    "device_memory_bytes: refuse a run that needs more on one device; 0: do not compare.\n"
    "with_programs: fill RankPlan.program.\n\n"
    "Raises Error (\"config\") for a layout that cannot run and for what does not fit, with the "
    "nearest setting that does.";

constexpr const char* kSimulateDoc =
    "Runs a step of all ranks in simulated time. Needs no data and no device.\n\n"
    "cluster: \"h200x8\", \"h100x1024\", or the path of a profile of `braid calibrate` (with a '/' "
    "or ending in \".json\").\n"
    "ranks: instead of parallel.ranks; the data dimension and the global batch grow along. 0: as "
    "the run file says.\n"
    "contention: tasks that run at the same time slow each other down.\n\n"
    "Raises Error (\"config\" and, for a profile, \"data\").";

constexpr const char* kVerifyDoc =
    "Compares losses and every gradient of the layout with one rank, for some optimizer steps. "
    "Ranks are threads of this process.\n\n"
    "Raises Error (\"config\") for more ranks than a machine can have as threads.";

constexpr const char* kTrainDoc =
    "Trains from scratch or from the newest checkpoint, as `braid train`, and writes the run "
    "folder. Other threads of Python run meanwhile.\n\n"
    "on_step: called after each step with a dict: step (int, from 1), loss (float, mean over the "
    "global batch, nats per token), grad_norm, learning_rate, tokens_per_s (over all ranks), "
    "step_ms, tflops_per_s_per_rank, consumed_samples and consumed_tokens (int). Returning False "
    "saves a checkpoint and ends; anything else goes on. What it raises ends the training without "
    "a checkpoint.\n"
    "on_output: called with every piece of text that `braid train` prints.\n"
    "stop_after_step: save and end after this step; 0: after the last one.\n"
    "allow_change: keys (\"data.train\") that may have changed since the checkpoint although that "
    "makes the run another one.\n\n"
    "Ctrl-C saves a checkpoint after the step that runs, and then raises KeyboardInterrupt.\n\n"
    "Raises Error: \"config\" before anything is written, \"data\" for files, \"device\" for a "
    "step "
    "that failed. A run on several GPUs has a process per rank: start them by torchrun, mpirun or "
    "srun, and let all of them call this alike.";

void add_run(nb::module_& module) {
  nb::class_<api::Run>(module, "Run",
                       "A run file with its overrides; braid.load makes one. It "
                       "does not change.")
      .def_static("_load", &api::Run::load, "path"_a, "overrides"_a)
      .def_static("_parse", &api::Run::parse, "text"_a, "name"_a, "overrides"_a)
      .def_prop_ro(
          "config", [](const api::Run& run) { return parsed_by("braid._toml", run.config()); },
          nb::sig("def config(self) -> dict[str, dict]"),
          "The run file with all keys and what follows from them, by section: "
          "config[\"train\"][\"steps\"]; a new dict at each access")
      .def(
          "plan",
          [](const api::Run& run, int64_t device_memory_bytes, bool with_programs) {
            return run.plan(
                {.device_memory_bytes = device_memory_bytes, .with_programs = with_programs});
          },
          nb::kw_only(), "device_memory_bytes"_a = 0, "with_programs"_a = false,
          nb::call_guard<nb::gil_scoped_release>(), kPlanDoc)
      .def(
          "simulate",
          [](const api::Run& run, const std::string& cluster, int64_t ranks, bool contention) {
            return run.simulate({.machine = cluster, .num_ranks = ranks, .contention = contention});
          },
          "cluster"_a, nb::kw_only(), "ranks"_a = 0, "contention"_a = true,
          nb::call_guard<nb::gil_scoped_release>(), kSimulateDoc)
      .def(
          "verify", [](const api::Run& run, int64_t steps) { return run.verify({.steps = steps}); },
          nb::kw_only(), "steps"_a = 3, nb::call_guard<nb::gil_scoped_release>(), kVerifyDoc)
      .def(
          "train",
          [](const api::Run& run, std::optional<nb::callable> on_step,
             std::optional<nb::callable> on_output, int64_t stop_after_step,
             std::vector<std::string> allow_change) {
            return train(
                run,
                {.stop_after_step = stop_after_step, .allowed_changes = std::move(allow_change)},
                {.on_step = std::move(on_step), .on_output = std::move(on_output)});
          },
          "on_step"_a = nb::none(), nb::kw_only(), "on_output"_a = nb::none(),
          "stop_after_step"_a = 0, "allow_change"_a = std::vector<std::string>(),
          nb::sig(
              "def train(self, on_step: collections.abc.Callable[[dict], object] | None = None, "
              "*, on_output: collections.abc.Callable[[str], object] | None = None, "
              "stop_after_step: int = 0, allow_change: collections.abc.Sequence[str] = []) -> "
              "TrainResult"),
          kTrainDoc);
}

}  // namespace

NB_MODULE(_braid, module) {
  module.doc() = "braid as a Python module; import braid instead.";
  add_error(module);
  add_plan(module);
  add_simulation(module);
  add_verification(module);
  add_train_result(module);
  add_run(module);
  module.def("_read_metrics", &read_columns, "run_folder"_a);
  // What to set before this module is loaded, for faster products on the CPU; empty: all is well.
  module.def("_better_environment", [] {
    nb::dict result;
    for (const auto& [name, value] : braid::host_backend().better_environment()) {
      result[name.c_str()] = value;
    }
    return result;
  });
}
