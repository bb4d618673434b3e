#include "runtime/choose_settings.h"

#include "runtime/choose_recompute.h"
#include "tune/auto_overlap.h"

namespace braid {

RunConfig choose_settings(const RunConfig& config, int64_t tokenizer_vocabulary,
                          const std::optional<RunMemory>& memory,
                          const ChooseOverlapOptions& options) {
  if (!wants_auto_recompute(config)) {
    return choose_overlap(config, tokenizer_vocabulary, options);
  }
  if (!memory) {
    if (options.print) {
      options.print(
          "recompute auto: the memory of a device is not known here, so this is planned without "
          "recompute; --device-memory or --cost say it\n");
    }
    return choose_overlap(config, tokenizer_vocabulary, options);
  }
  if (!wants_auto_overlap(config)) {
    return choose_recompute(config, tokenizer_vocabulary, *memory, options.print);
  }
  RunConfig chosen = choose_overlap(choose_recompute(config, tokenizer_vocabulary, *memory),
                                    tokenizer_vocabulary, options);
  chosen.memory = config.memory;
  return choose_recompute(chosen, tokenizer_vocabulary, *memory, options.print);
}

}  // namespace braid
