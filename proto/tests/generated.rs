//! The committed protobuf code is what the `.proto` file generates; no protoc is needed to find out.

use std::path::Path;
use std::{env, fs};

#[test]
fn generated_code_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed_at = root.join("src/pb/corelane.v1.rs");
    let out_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    fs::create_dir_all(&out_dir).unwrap();

    let descriptors = protox::compile(["corelane.proto"], [root.join("proto")]).unwrap();
    prost_build::Config::new().out_dir(&out_dir).compile_fds(descriptors).unwrap();
    let generated = fs::read_to_string(out_dir.join("corelane.v1.rs")).unwrap();

    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&committed_at, &generated).unwrap();
    }
    let committed = fs::read_to_string(&committed_at).unwrap_or_default();
    assert!(
        committed == generated,
        "src/pb/corelane.v1.rs is stale: UPDATE_GENERATED=1 cargo test -p corelane-proto --test generated"
    );
}
