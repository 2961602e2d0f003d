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
    devcluster: Option<Process>,
}

impl Cluster {
    /// Connects, and starts a devcluster if no cluster is given.
    pub async fn start(dir: &Path) -> Self {
        let given = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
        match given {
            Some(path) => Self::connect(path.into(), None).await,
            None => Self::own(dir).await,
        }
    }

    /// Starts a devcluster, also where another cluster is given.
    pub async fn own(dir: &Path) -> Self {
        let kubeconfig = dir.join("kubeconfig");
        let process = devcluster(dir, &kubeconfig).await;
        Self::connect(kubeconfig, Some(process)).await
    }

    async fn connect(kubeconfig: PathBuf, devcluster: Option<Process>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        Self { kubeconfig, client, devcluster }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The file that tells programs where the cluster is.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What the devcluster has said; nothing of another cluster.
    pub fn log(&self) -> String {
        self.devcluster.as_ref().map(Process::output).unwrap_or_default()
    }

    /// A file that makes whoever uses it this user and no more.
    pub fn kubeconfig_as(&self, user: &str) -> PathBuf {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["users"][0]["user"]["as"] = user.into();
        let path = self.kubeconfig.with_extension("as");
        std::fs::write(&path, config.to_string()).unwrap();
        path
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

    /// kubectl, for this cluster.
    pub fn command(&self) -> Command {
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
