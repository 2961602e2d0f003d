//! An API server with the namespaces that the installation expects, and its users' clients.

use neptune_harness::{Cluster, cluster::KubectlOutput};
use tempfile::TempDir;

pub struct Installation {
    cluster: Cluster,
    dir: TempDir,
}

impl Installation {
    /// Starts an API server with the namespaces `neptune-system` and `kubeedge`: a dry run creates
    /// none.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::in_process(dir.path()).await;
        for namespace in ["neptune-system", "kubeedge"] {
            cluster.kubectl(&["create", "namespace", namespace]);
        }
        Self { cluster, dir }
    }

    /// Standard output and standard error of kubectl.
    pub fn kubectl(&self, arguments: &[&str]) -> (String, String) {
        self.kubectl_with_input(arguments, "")
    }

    /// Like [`Installation::kubectl`], with this text on its standard input.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> (String, String) {
        let output = self.cluster.try_kubectl(arguments, input);
        (output.stdout, output.stderr.replace("No resources found\n", ""))
    }

    /// Standard output and standard error of helm.
    pub fn helm(&self, arguments: &[&str]) -> (String, String) {
        let mut helm = deploy_tests::helm();
        helm.args(arguments).args(["--namespace", "neptune-system"]);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(folder, self.dir.path());
        }
        let output: KubectlOutput =
            helm.env("KUBECONFIG", self.cluster.kubeconfig()).output().unwrap().into();
        (output.stdout, deploy_tests::without_notes(&output.stderr))
    }
}
