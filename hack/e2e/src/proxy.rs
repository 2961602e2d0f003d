//! The edge node's way to the broker where there is no `KubeEdge` between them: a TCP proxy that can be cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Passes connections on until it is dropped.
pub struct Proxy {
    port: u16,
    is_cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Before this port of loopback.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let is_cut = watch::Sender::new(false);
        let task = tokio::spawn(serve(listener, port, is_cut.subscribe()));
        Self { port: own, is_cut, task }
    }

    /// Where clients connect in place of the broker.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Ends every connection and takes no other until [`Proxy::heal`].
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Ends the cut.
    pub fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, port: u16, is_cut: watch::Receiver<bool>) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut is_cut = is_cut.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = is_cut.wait_for(|is_cut| *is_cut) => {}
                () = async {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                } => {}
            }
        });
    }
}
