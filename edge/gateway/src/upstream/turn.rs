//! Whose turn it is while a body is passed on: the client's to send more of it, or the server's to
//! take it and to answer. A slow client takes nothing from the server's time.

use std::{
    future::{Future, pending},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{
    sync::watch::{self, Receiver, Sender},
    time::sleep,
};

use crate::server::{AnyBody, boxed};

/// Who is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The client has to send more of the body.
    Client,
    /// The server has to take the body, or to answer.
    Server,
}

/// A body that records whose turn it is.
struct Watched {
    body: AnyBody,
    turn: Sender<Turn>,
}

/// The body, and whose turn it is.
pub(super) fn watched(body: AnyBody) -> (AnyBody, Receiver<Turn>) {
    let (turn, turns) = watch::channel(Turn::Server);
    (boxed(Watched { body, turn }), turns)
}

/// Returns the turn for a body that is whole: it is always the server's.
pub(super) fn servers() -> Receiver<Turn> {
    watch::channel(Turn::Server).1
}

impl Body for Watched {
    type Data = Bytes;
    type Error = <AnyBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            self.turn.send_replace(Turn::Client);
        } else {
            // The server's time begins again with each piece that it takes.
            self.turn.send_replace(Turn::Server);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer; `None` if it is the server's turn for longer than `limit`.
pub(super) async fn answered<T>(
    answer: impl Future<Output = T>,
    mut turns: Receiver<Turn>,
    limit: Duration,
) -> Option<T> {
    tokio::pin!(answer);
    let mut is_sending = true;
    loop {
        let turn = *turns.borrow_and_update();
        let silent = async {
            if is_sending && turn == Turn::Client { pending().await } else { sleep(limit).await }
        };
        tokio::select! {
            biased;
            answer = &mut answer => return Some(answer),
            // An error means that the body was sent, or is dropped.
            changed = turns.changed(), if is_sending => is_sending = changed.is_ok(),
            () = silent => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::server::stream_body;

    const LIMIT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn slow_client_takes_nothing_from_the_servers_time() {
        let (sender, body) = stream_body();
        let (mut body, turns) = watched(boxed(body));
        tokio::spawn(async move {
            for _ in 0..3 {
                sleep(LIMIT * 2).await;
                sender.send(Bytes::from_static(b"piece")).await.unwrap();
            }
        });
        let read = async move {
            while let Some(piece) = body.frame().await {
                piece.unwrap();
            }
            sleep(LIMIT / 4).await;
        };
        assert_eq!(answered(read, turns, LIMIT).await, Some(()));
    }

    #[tokio::test]
    async fn server_that_does_not_read_or_answer_is_given_up() {
        let (sender, body) = stream_body();
        let (body, turns) = watched(boxed(body));
        assert_eq!(answered(pending::<()>(), turns, LIMIT).await, None, "it does not read");
        drop((sender, body));
        assert_eq!(answered(pending::<()>(), servers(), LIMIT).await, None);
    }
}
