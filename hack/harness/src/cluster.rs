//! A Kubernetes API server: a devcluster of the test, or the cluster of `KUBECONFIG`.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use tokio::{net::TcpListener, sync::oneshot};

use crate::{
    Process,
    wait::{eventually, within},
    workspace::program,
};

/// An API server that tests may write to.
pub struct Cluster {
    kubeconfig: PathBuf,
    client: Client,
    server: Server,
}

enum Server {
    /// An API server that outlives the test.
    External,
    /// The `devcluster` of this workspace.
    Process(Process),
    /// A devcluster on a thread of this process. It ends when the sender is dropped.
    Thread(#[expect(dead_code, reason = "dropped, not sent to")] oneshot::Sender<()>),
}

/// Starts a devcluster with these CRDs as a task of the present runtime. Returns a client.
///
/// # Panics
/// If loopback has no free port, or a CRD is not valid.
pub async fn api_server(crds: &[CustomResourceDefinition]) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(devcluster::serve(listener, std::future::pending()));
    let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds {
        let name = crd.metadata.name.clone().expect("a CRD has a name");
        api.create(&PostParams::default(), crd).await.expect("the CRD is valid");
        await_condition(api.clone(), &name, is_crd_established()).await.expect("it is served");
    }
    client
}

/// The exit status and the output of a kubectl command.
#[derive(Debug)]
pub struct KubectlOutput {
    /// Whether kubectl exited with 0.
    pub ok: bool,
    pub stdout: String,
    pub stderr: String,
}

impl KubectlOutput {
    /// The warnings of the API server.
    pub fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter_map(|line| line.strip_prefix("Warning: ")).collect()
    }
}

impl From<Output> for KubectlOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Self { ok: output.status.success(), stdout, stderr }
    }
}

impl Cluster {
    /// The cluster of `KUBECONFIG` if that is set, else a devcluster as a process.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn start(dir: &Path) -> Self {
        let given = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
        match given {
            Some(path) => Self::external(path.into()).await.unwrap(),
            None => Self::devcluster(dir).await,
        }
    }

    /// A devcluster as a process, which logs to `dir`. `cargo build --workspace` builds it.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn devcluster(dir: &Path) -> Self {
        let kubeconfig = dir.join("kubeconfig");
        let mut command = Command::new(program("devcluster"));
        command.args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"]).arg(&kubeconfig);
        let mut process = Process::start("devcluster", dir, &mut command);
        eventually("devcluster to write its kubeconfig", || {
            if let Some(status) = process.exit_status() {
                panic!("devcluster exited with {status}:\n{}", process.tail(60));
            }
            kubeconfig.exists()
        })
        .await;
        Self::connect(kubeconfig, Server::Process(process)).await.unwrap()
    }

    /// A devcluster within this process. It needs no program beside the test, and has no log of its
    /// own.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn in_process(dir: &Path) -> Self {
        let kubeconfig = dir.join("kubeconfig");
        let (address_sender, address) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        // A thread and a runtime of its own: it answers also while a test blocks.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let _ = address_sender.send(listener.local_addr().unwrap());
                let until_stopped = async move { drop(stopped.await) };
                let _ = devcluster::serve(listener, until_stopped).await;
            });
        });
        let address = within("the address of devcluster", address).await.unwrap();
        write_kubeconfig(&kubeconfig, address);
        Self::connect(kubeconfig, Server::Thread(stop)).await.unwrap()
    }

    /// An existing cluster, as the kubeconfig's current context names it.
    ///
    /// # Errors
    /// If the kubeconfig cannot be used.
    pub async fn external(kubeconfig: PathBuf) -> Result<Self, KubeconfigError> {
        Self::connect(kubeconfig, Server::External).await
    }

    async fn connect(kubeconfig: PathBuf, server: Server) -> Result<Self, KubeconfigError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config).expect("the configuration was read");
        Ok(Self { kubeconfig, client, server })
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The file by which programs find the cluster.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Whether it outlives the test, and has controllers and perhaps kubelets of its own.
    pub fn is_external(&self) -> bool {
        matches!(self.server, Server::External)
    }

    /// The log of the devcluster process; empty for other servers.
    pub fn log(&self) -> String {
        match &self.server {
            Server::Process(process) => process.log(),
            Server::External | Server::Thread(_) => String::new(),
        }
    }

    /// Writes a kubeconfig with the rights of this user, and returns its path.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn kubeconfig_as(&self, user: &str) -> PathBuf {
        let path = self.kubeconfig.with_extension("as");
        fs::copy(&self.kubeconfig, &path).unwrap();
        impersonate(&path, user);
        path
    }

    /// kubectl for this cluster.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Runs kubectl, and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with_input(args, "")
    }

    /// Runs `kubectl apply -f -`.
    ///
    /// # Panics
    /// If it fails.
    pub fn apply(&self, yaml: &str) -> String {
        self.kubectl_with_input(&["apply", "-f", "-"], yaml)
    }

    /// Runs kubectl with a text on its standard input, and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> String {
        let output = self.try_kubectl(args, input);
        assert!(output.ok, "kubectl {args:?} failed:\n{}\ninput:\n{input}", output.stderr);
        output.stdout
    }

    /// Runs kubectl with a text on its standard input. It may fail.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn try_kubectl(&self, args: &[&str], input: &str) -> KubectlOutput {
        let mut child = self
            .kubectl_command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is installed (hack/test.sh installs it)");
        let mut stdin = child.stdin.take().unwrap();
        // kubectl may exit without reading input that it does not need.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap().into()
    }
}

/// Writes a kubeconfig for the server at an address.
///
/// # Panics
/// If the file cannot be written.
pub fn write_kubeconfig(path: &Path, address: SocketAddr) {
    devcluster::kubeconfig::write(path, address, "test").unwrap();
}

/// Adds impersonation of this user to a kubeconfig.
///
/// # Panics
/// If the file is not one that this module wrote.
pub fn impersonate(kubeconfig: &Path, user: &str) {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] = user.into();
    fs::write(kubeconfig, config.to_string()).unwrap();
}
