//! The packets that wait for a client to read them, limited by their bytes.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Bytes of packets that may wait for one client: a burst of 8 workers at their limit. The largest
/// packet needs a third of it.
pub const MAX_BYTES: u32 = 256 * 1024;
/// What a packet needs beside its bytes.
const OVERHEAD: usize = 64;

/// The queue has no room, or its client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

/// Takes packets for a client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outgoing {
    packets: mpsc::UnboundedSender<Queued>,
    room: Arc<Semaphore>,
}

/// Reserved room for one packet.
#[derive(Debug)]
pub struct Room<'a> {
    queue: &'a Outgoing,
    room: OwnedSemaphorePermit,
}

/// Gives the packets to the task that writes them.
#[derive(Debug)]
pub struct Queue(mpsc::UnboundedReceiver<Queued>);

/// A packet. Its bytes count until it is dropped.
#[derive(Debug)]
pub struct Queued {
    /// The encoded packet to send.
    pub packet: Bytes,
    _room: OwnedSemaphorePermit,
}

/// A queue without packets.
pub fn queue() -> (Outgoing, Queue) {
    let (packets, queued) = mpsc::unbounded_channel();
    (Outgoing { packets, room: Arc::new(Semaphore::new(MAX_BYTES as usize)) }, Queue(queued))
}

/// A packet that exceeds the queue takes all of it.
fn cost(packet: &Bytes) -> u32 {
    u32::try_from(packet.len() + OVERHEAD).unwrap_or(MAX_BYTES).min(MAX_BYTES)
}

impl Outgoing {
    /// Waits for room for a packet.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn reserve(&self, packet: &Bytes) -> Result<Room<'_>, QueueFull> {
        // A client that left does not free its room.
        let room = tokio::select! {
            room = Arc::clone(&self.room).acquire_many_owned(cost(packet)) => room,
            () = self.packets.closed() => return Err(QueueFull),
        };
        Ok(Room { queue: self, room: room.map_err(|_| QueueFull)? })
    }

    /// Waits for room, and queues a packet.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn send(&self, packet: Bytes) -> Result<(), QueueFull> {
        self.reserve(&packet).await?.send(packet)
    }

    /// Queues a packet if there is room.
    ///
    /// # Errors
    /// There is none, or the client is gone.
    pub fn try_send(&self, packet: Bytes) -> Result<(), QueueFull> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(cost(&packet));
        self.push(packet, room.map_err(|_| QueueFull)?)
    }

    /// Whether less than half of the room is left.
    pub fn is_filling(&self) -> bool {
        self.room.available_permits() < MAX_BYTES as usize / 2
    }

    /// Whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.packets.is_closed()
    }

    fn push(&self, packet: Bytes, room: OwnedSemaphorePermit) -> Result<(), QueueFull> {
        self.packets.send(Queued { packet, _room: room }).map_err(|_| QueueFull)
    }
}

impl Room<'_> {
    /// Queues the packet that it was reserved for.
    ///
    /// # Errors
    /// The client is gone.
    pub fn send(self, packet: Bytes) -> Result<(), QueueFull> {
        self.queue.push(packet, self.room)
    }
}

impl Queue {
    /// Waits for a packet; `None` after the last one.
    pub async fn next(&mut self) -> Option<Queued> {
        self.0.recv().await
    }

    /// A packet that is there.
    pub fn try_next(&mut self) -> Option<Queued> {
        self.0.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn queue_is_limited_by_bytes_and_not_by_packets() {
        let (outgoing, mut queue) = queue();
        let packet = Bytes::from(vec![0; 192]);
        let fitting = MAX_BYTES as usize / (192 + OVERHEAD);
        for number in 0..fitting {
            assert_eq!(outgoing.try_send(packet.clone()), Ok(()), "packet {number}");
        }
        assert_eq!(outgoing.try_send(packet.clone()), Err(QueueFull));
        let waiting = outgoing.reserve(&packet);
        tokio::pin!(waiting);
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        drop(queue.next().await);
        waiting.await.unwrap().send(packet.clone()).unwrap();
    }

    #[tokio::test]
    async fn packet_larger_than_the_queue_passes_alone() {
        let (outgoing, mut queue) = queue();
        let large = Bytes::from(vec![0; 2 * MAX_BYTES as usize]);
        outgoing.try_send(large.clone()).unwrap();
        assert_eq!(outgoing.try_send(Bytes::new()), Err(QueueFull));
        assert_eq!(queue.next().await.unwrap().packet, large);
        outgoing.try_send(Bytes::new()).unwrap();
    }

    #[tokio::test]
    async fn sender_does_not_wait_for_a_client_that_left() {
        let (outgoing, queue) = queue();
        while outgoing.try_send(Bytes::from(vec![0; 60_000])).is_ok() {}
        let packet = Bytes::from(vec![0; 60_000]);
        let waiting = outgoing.reserve(&packet);
        tokio::pin!(waiting);
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        drop(queue);
        // It may get the room of what the client did not read.
        assert_eq!(waiting.await.and_then(|room| room.send(packet.clone())), Err(QueueFull));
        assert!(outgoing.is_closed());
    }
}
