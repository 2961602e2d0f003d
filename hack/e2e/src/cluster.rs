//! A Kubernetes API: the one that `KUBECONFIG` names, or a devcluster of the test's own.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{Process, program, run};

/// An API server that tests may write to.
pub struct Cluster {
    kubeconfig: PathBuf,
    client: Client,
    _devcluster: Option<Process>,
}

impl Cluster {
    /// Connects, and starts a devcluster if no cluster is given.
    pub async fn start(dir: &Path) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let given = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
        let (kubeconfig, devcluster) = if let Some(path) = given {
            (PathBuf::from(path), None)
        } else {
            let kubeconfig = dir.join("kubeconfig");
            let process = devcluster(dir, &kubeconfig).await;
            (kubeconfig, Some(process))
        };
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        Self { kubeconfig, client, _devcluster: devcluster }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The file that tells programs where the cluster is.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl as a user would, and returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> String {
        run(self.command().args(args))
    }

    /// `kubectl apply -f -`.
    pub fn apply(&self, yaml: &str) -> String {
        self.piped(&["apply", "-f", "-"], yaml)
    }

    /// Runs kubectl with a text on its standard input.
    pub fn piped(&self, args: &[&str], input: &str) -> String {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is installed (hack/test.sh sees to it)");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "kubectl {args:?} failed:\n{}\ninput:\n{input}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }
}

async fn devcluster(dir: &Path, kubeconfig: &Path) -> Process {
    let mut command = Command::new(program("devcluster"));
    command.args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"]).arg(kubeconfig);
    let process = Process::start("devcluster", dir, &mut command);
    for _ in 0..400 {
        if kubeconfig.exists() {
            return process;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("devcluster wrote no kubeconfig within 10 s:\n{}", process.output());
}
