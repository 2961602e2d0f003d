//! The real kubectl, as a user calls it.

use std::process::Stdio;

use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{Bed, soon};

/// What a run of kubectl printed.
#[derive(Debug)]
pub struct Ran {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

impl Bed {
    /// Runs kubectl on this cluster, past the trouble.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = Command::new("kubectl")
            .args(arguments)
            .env("KUBECONFIG", self.directory.path().join("kubectl"))
            .env("HOME", self.directory.path())
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("these tests need kubectl");
        let mut stdin = child.stdin.take().unwrap();
        // kubectl may end without reading what it does not need.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = soon("kubectl ends", child.wait_with_output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }
}
