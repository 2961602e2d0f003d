//! Accepts a connection: reads CONNECT, decides who the client is, and answers. `session.rs` handles
//! the other packets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, mpsc},
    time::timeout,
};
use tracing::debug;

use super::{
    access::ClientIdentity,
    encode::connack,
    hub::{QUEUE, Registration},
    packet::{Connect, ConnectCode, Decoder, Packet, ProtocolError},
    session::{CLOSE_TIMEOUT, Closed, Connected, Session, Shared},
};

/// How long a client may take to send CONNECT.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read one packet.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CLIENT_ID: usize = 256;

/// Serves a client until its connection is closed. `is_accepted` is set when its login is valid.
pub async fn serve(stream: TcpStream, shared: Arc<Shared>, is_accepted: Arc<AtomicBool>) {
    // Without it only the latency differs.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let mut decoder = Decoder::default();
    let closed = match accept(reader, writer, &mut decoder, &shared).await {
        Ok((mut session, reader)) => {
            is_accepted.store(true, Ordering::Relaxed);
            let closed = session.run(reader, decoder).await;
            session.end(&closed).await;
            closed
        }
        Err(closed) => closed,
    };
    debug!(%closed, "connection closed");
}

/// Reads CONNECT, decides who the client is, and answers.
async fn accept(
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    decoder: &mut Decoder,
    shared: &Arc<Shared>,
) -> Result<(Session, OwnedReadHalf), Closed> {
    let connect = timeout(CONNECT_TIMEOUT, first_packet(&mut reader, decoder)).await;
    let connect = connect.map_err(|_| Closed::Broker("no CONNECT in time"))?;
    let (outgoing, queue) = mpsc::channel(QUEUE);
    let close = Arc::new(Notify::new());
    let registered = match connect {
        Ok(connect) => register(&connect, shared, &outgoing, &close)
            .await
            .map(|(identity, registration)| (connect, identity, registration))
            .map_err(Closed::Refused),
        Err(Closed::Protocol(ProtocolError::Version)) => {
            Err(Closed::Refused(ConnectCode::UnsupportedVersion))
        }
        Err(closed) => Err(closed),
    };
    let code = match &registered {
        Ok(_) => ConnectCode::Accepted,
        Err(Closed::Refused(code)) => *code,
        Err(_) => return Err(registered.err().unwrap_or(Closed::ByClient)),
    };
    timeout(CLOSE_TIMEOUT, writer.write_all(&connack(code)))
        .await
        .map_err(|_| Closed::Broker("reads too slowly"))??;
    let (connect, identity, registration) = registered?;
    let writer = tokio::spawn(write(writer, queue, Arc::clone(&close)));
    let connected = Connected { identity, registration, outgoing, writer, close };
    let session = Session::new(Arc::clone(shared), connected, connect);
    Ok((session, reader))
}

async fn first_packet(
    reader: &mut OwnedReadHalf,
    decoder: &mut Decoder,
) -> Result<Connect, Closed> {
    loop {
        match decoder.next()? {
            Some(Packet::Connect(connect)) => return Ok(*connect),
            Some(_) => return Err(Closed::Broker("the first packet is not CONNECT")),
            None if reader.read_buf(decoder.buffer()).await? == 0 => return Err(Closed::ByClient),
            None => {}
        }
    }
}

async fn register(
    connect: &Connect,
    shared: &Arc<Shared>,
    outgoing: &mpsc::Sender<Bytes>,
    close: &Arc<Notify>,
) -> Result<(ClientIdentity, Registration), ConnectCode> {
    let id = &connect.client_id;
    if id.len() > MAX_CLIENT_ID || (id.is_empty() && !connect.clean_session) {
        return Err(ConnectCode::IdentifierRejected);
    }
    let identity = shared.credentials.authenticate(connect.login.as_ref()).await?;
    let (outgoing, close) = (outgoing.clone(), Arc::clone(close));
    let registration = shared.hub.register(identity.clone(), id.clone(), outgoing, close)?;
    Ok((identity, registration))
}

/// Writes queued packets. A client that does not read them in time is disconnected.
async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Bytes>, close: Arc<Notify>) {
    while let Some(packet) = queue.recv().await {
        if !matches!(timeout(WRITE_TIMEOUT, writer.write_all(&packet)).await, Ok(Ok(()))) {
            close.notify_one();
            return;
        }
    }
}
