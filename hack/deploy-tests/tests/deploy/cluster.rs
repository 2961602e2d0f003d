//! A Kubernetes API, and the clients of its users.

use std::{path::PathBuf, process::Stdio};

use tempfile::TempDir;
use tokio::{net::TcpListener, process::Command, task::JoinHandle};

/// It ends with this value.
pub struct Cluster {
    dir: TempDir,
    serving: JoinHandle<Result<(), devcluster::Error>>,
}

impl Cluster {
    /// With the namespaces that are there before: a dry run makes nothing, and `KubeEdge` has its own.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(devcluster::serve(listener, std::future::pending()));
        let cluster = Self { dir: tempfile::tempdir().unwrap(), serving };
        devcluster::kubeconfig::write(&cluster.kubeconfig(), address, "deploy").unwrap();
        for namespace in ["neptune-system", "kubeedge"] {
            let (_, complaints) = cluster.kubectl(&["create", "namespace", namespace]).await;
            assert_eq!(complaints, "");
        }
        cluster
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// What kubectl prints, and what it complains of.
    pub async fn kubectl(&self, arguments: &[&str]) -> (String, String) {
        let (printed, complaints) = self.run(Command::new("kubectl").args(arguments)).await;
        (printed, complaints.replace("No resources found\n", ""))
    }

    /// What helm prints, and what it complains of.
    pub async fn helm(&self, arguments: &[&str]) -> (String, String) {
        let mut helm = Command::from(deploy_tests::helm());
        let helm = helm.args(arguments).args(["--namespace", "neptune-system"]);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(folder, self.dir.path());
        }
        let (printed, complaints) = self.run(helm).await;
        (printed, deploy_tests::without_remarks(&complaints))
    }

    async fn run(&self, command: &mut Command) -> (String, String) {
        let command = command.env("KUBECONFIG", self.kubeconfig());
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
