//! Accepts a connection: reads CONNECT, decides who the client is, and answers. `session.rs` handles
//! the other packets.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use neptune_program::listen::{Entry, Identity};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    time::timeout,
};
use tracing::debug;

use crate::{
    access::ClientIdentity,
    encode::{connack, connack_5},
    hub::Registration,
    packet::{Connect, ConnectCode, Decoder, OtherConnect, Packet},
    queue::{Outgoing, Queue, queue},
    session::{CLOSE_TIMEOUT, Closed, Connected, Session, Shared},
};

/// How long a client may take to send CONNECT.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read one packet.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CLIENT_ID: usize = 256;
/// Queued packets are written together up to this size.
const MAX_WRITE: usize = 16 * 1024;

/// Serves a client until its connection is closed. `entry` is admitted when the login is valid.
pub async fn serve(stream: TcpStream, shared: Arc<Shared>, entry: Entry) {
    // Without it only the latency differs.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let mut decoder = Decoder::default();
    let closed = match accept(reader, writer, &mut decoder, (&shared, &entry)).await {
        Ok((mut session, reader)) => {
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
    (shared, entry): (&Arc<Shared>, &Entry),
) -> Result<(Session, OwnedReadHalf), Closed> {
    let first = timeout(CONNECT_TIMEOUT, first_packet(&mut reader, decoder)).await;
    let connect = match first.map_err(|_| Closed::Broker("no CONNECT in time"))?? {
        First::Connect(connect) => connect,
        First::Other(other) => {
            shared.credentials.note_other_version(&other);
            entry.refuse_unknown();
            let answer =
                if other.is_newer { connack_5() } else { connack(ConnectCode::UnsupportedVersion) };
            write_answer(&mut writer, &answer).await?;
            return Err(Closed::Refused(ConnectCode::UnsupportedVersion));
        }
    };
    let (outgoing, queued) = queue();
    let close = Arc::new(Notify::new());
    let (identity, registration) = match register(&connect, shared, &outgoing, &close).await {
        // The hub limits the connections of this user.
        Ok(registered) if entry.admit(Identity::Trusted).is_ok() => registered,
        Ok(_) => return Err(Closed::Refused(ConnectCode::ServerUnavailable)),
        Err(code) => {
            if matches!(code, ConnectCode::BadLogin | ConnectCode::NotAuthorized) {
                shared.credentials.note_refusal(&connect.client_id, connect.login.as_ref());
                entry.refuse_unknown();
            }
            write_answer(&mut writer, &connack(code)).await?;
            return Err(Closed::Refused(code));
        }
    };
    write_answer(&mut writer, &connack(ConnectCode::Accepted)).await?;
    let writer = tokio::spawn(write(writer, queued, Arc::clone(&close)));
    let connected = Connected { identity, registration, outgoing, writer, close };
    let session = Session::new(Arc::clone(shared), connected, connect);
    Ok((session, reader))
}

async fn write_answer(writer: &mut OwnedWriteHalf, answer: &[u8]) -> Result<(), Closed> {
    let written = timeout(CLOSE_TIMEOUT, writer.write_all(answer)).await;
    written.map_err(|_| Closed::Broker("reads too slowly"))?.map_err(Closed::Lost)
}

/// The first packet of a client, which must be a CONNECT.
enum First {
    Connect(Connect),
    /// CONNECT of a version that the broker does not support.
    Other(OtherConnect),
}

async fn first_packet(reader: &mut OwnedReadHalf, decoder: &mut Decoder) -> Result<First, Closed> {
    loop {
        match decoder.next()? {
            Some(Packet::Connect(connect)) => return Ok(First::Connect(*connect)),
            Some(Packet::OtherConnect(other)) => return Ok(First::Other(*other)),
            Some(_) => return Err(Closed::Broker("the first packet is not CONNECT")),
            None if reader.read_buf(decoder.buffer()).await? == 0 => return Err(Closed::ByClient),
            None => {}
        }
    }
}

async fn register(
    connect: &Connect,
    shared: &Arc<Shared>,
    outgoing: &Outgoing,
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
async fn write(mut writer: OwnedWriteHalf, mut queue: Queue, close: Arc<Notify>) {
    while let Some(first) = queue.next().await {
        // Their bytes count until they are written.
        let mut queued = vec![first];
        let mut length = queued[0].packet.len();
        while length < MAX_WRITE
            && let Some(next) = queue.try_next()
        {
            length += next.packet.len();
            queued.push(next);
        }
        let bytes: Bytes = if let [only] = &queued[..] {
            only.packet.clone()
        } else {
            let mut together = BytesMut::with_capacity(length);
            for it in &queued {
                together.extend_from_slice(&it.packet);
            }
            together.freeze()
        };
        if !matches!(timeout(WRITE_TIMEOUT, writer.write_all(&bytes)).await, Ok(Ok(()))) {
            close.notify_one();
            return;
        }
    }
}
