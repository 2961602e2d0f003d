//! Runs commands of people in a fleet: those of kubectl's plugin, and of the shell in a worker.

use std::process::Command;

use neptune_harness::{cluster::KubectlOutput, docker, workspace::program};

use super::Fleet;

impl Fleet {
    /// Runs kubectl's plugin in the test's namespace, as this user or with all rights. It may fail.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn plugin(&self, user: Option<&str>, args: &[&str]) -> KubectlOutput {
        self.plugin_command(user, args).output().unwrap().into()
    }

    /// The command of [`Fleet::plugin`].
    ///
    /// # Panics
    /// If the plugin was not built.
    pub fn plugin_command(&self, user: Option<&str>, args: &[&str]) -> Command {
        let (name, args) = args.split_first().expect("a subcommand");
        let mut command = Command::new(program("neptune-cloud"));
        command.arg(name).args(["-n", &self.namespace]).args(args);
        let kubeconfig = match user {
            Some(user) => self.cluster.kubeconfig_as(user),
            None => self.cluster.kubeconfig().to_owned(),
        };
        command.env("KUBECONFIG", kubeconfig);
        command
    }

    /// The IDs of the running containers of a service on the edge node; none while the engine does
    /// not answer.
    pub fn edge_containers(&self, service: &str) -> Vec<String> {
        docker::try_running_object_containers(&self.edge, &self.object(service)).unwrap_or_default()
    }

    /// A service as topics and the labels of containers name it.
    pub fn object(&self, service: &str) -> String {
        format!("{}/jointinferenceservices/{service}", self.namespace)
    }

    /// Runs a command of the shell in the edge worker of a service. `None` if the worker does not
    /// run, or the command fails.
    pub fn shell(&self, service: &str, command: &str) -> Option<String> {
        let containers = self.edge_containers(service);
        docker::shell(containers.first()?, command).ok()
    }
}
