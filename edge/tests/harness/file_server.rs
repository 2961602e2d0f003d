//! An HTTP server that serves one file.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
};

/// Serves one file, which can be changed.
pub struct FileServer {
    pub url: String,
    content: watch::Sender<Vec<u8>>,
}

impl FileServer {
    pub async fn serve(content: &[u8]) -> Self {
        Self::answering("200 OK", content).await
    }

    /// Starts a server that refuses every request with 401.
    pub async fn refusing() -> Self {
        Self::answering("401 Unauthorized", b"").await
    }

    async fn answering(status: &'static str, content: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/big.bin", listener.local_addr().unwrap());
        let (sender, content) = watch::channel(content.to_vec());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let body = content.borrow().clone();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            }
        });
        Self { url, content: sender }
    }

    pub fn change(&self, content: &[u8]) {
        self.content.send_replace(content.to_vec());
    }
}
