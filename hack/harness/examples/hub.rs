//! Runs the model hub of the tests until its standard input ends, for `hack/test-hub.sh`. Prints its
//! URL and the token of its private repository.

use std::io;

use neptune_harness::hub::{Hub, Repository};

const TOKEN: &str = "hf_token_of_the_tests";

#[tokio::main]
async fn main() {
    // More than one range of every client, and not compressible.
    let weights: Vec<u8> =
        (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let first: [(&str, &[u8]); 4] = [
        ("config.json", b"{\"model_type\": \"test\"}"),
        ("README.md", b"# Test"),
        ("onnx/model.bin", &weights),
        ("onnx/names of classes.txt", b"0\n1\n"),
    ];
    let second: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("onnx/model.bin", &weights)];
    let public = Repository::new("org/model").commit("v1", &first).commit("main", &second);
    let private = Repository::new("org/private").commit("main", &second).private(TOKEN);
    let gated = Repository::new("org/gated").commit("main", &second).gated(TOKEN);
    let hub = Hub::start(vec![public.renamed_from("org/old"), private, gated]).await;
    hub.set_page(2);
    println!("{} {TOKEN}", hub.url());
    let ended = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    drop(ended.await);
}
