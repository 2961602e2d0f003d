//! The committed messages of gRPC are those of the `.proto` file. No `protoc` is needed.

use std::{fs, path::Path};

use prost_build::Config;

/// The first lines of the file.
const HEADER: &str = "//! Messages of the Open Inference Protocol. Generated from `proto/inference.proto` by\n\
    //! `tests/gateway/generated.rs`; not edited by hand.\n\n";
/// Set to write the file instead of comparing it.
const WRITE: &str = "NEPTUNE_WRITE_GENERATED";

#[test]
fn messages_are_those_of_the_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let proto = root.join("proto/inference.proto");
    let descriptors = protox::compile([&proto], [root.join("proto")]).unwrap();
    let mut config = Config::new();
    config.bytes(["."]).btree_map(["."]).out_dir(folder.path());
    config.compile_fds(descriptors).unwrap();
    let generated = fs::read_to_string(folder.path().join("inference.rs")).unwrap();
    let generated = format!("{HEADER}{generated}");
    let committed = root.join("src/protocol/grpc/inference.rs");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&committed, &generated).unwrap();
    }
    let content = fs::read_to_string(&committed).unwrap_or_default();
    assert!(content == generated, "{} differs; run the test with {WRITE}=1", committed.display());
}
