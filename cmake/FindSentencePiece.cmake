# Target braid::sentencepiece: tokenizers and their trainer. Elsewhere than in the system's folders: CMAKE_PREFIX_PATH.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_trainer.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SENTENCEPIECE_TRAIN_LIBRARY SENTENCEPIECE_LIBRARY SENTENCEPIECE_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libsentencepiece-dev")

if(SentencePiece_FOUND AND NOT TARGET braid::sentencepiece)
  add_library(braid::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(braid::sentencepiece PROPERTIES
    IMPORTED_LOCATION ${SENTENCEPIECE_TRAIN_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${SENTENCEPIECE_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ${SENTENCEPIECE_LIBRARY})
endif()
mark_as_advanced(SENTENCEPIECE_INCLUDE_DIR SENTENCEPIECE_LIBRARY SENTENCEPIECE_TRAIN_LIBRARY)
