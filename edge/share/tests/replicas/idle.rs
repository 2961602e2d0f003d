//! An idle replica asks its source over a connection that both sides close after some seconds.

use neptune_share::peers::client::kept::KeptConnection;
use neptune_share::replicas::FileEnd;

use crate::fixture::{Fixture, name};

/// Questions of an hour, one every 10 s.
const QUESTIONS: usize = 360;

#[tokio::test]
async fn connection_that_closes_during_a_question_is_replaced() {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let generation = fixture.scan(false).await;
    let mut kept = KeptConnection::default();
    for question in 0..QUESTIONS {
        let described = kept.describe(&fixture.key, &fixture.peer, &name()).await;
        let described = described.unwrap_or_else(|error| panic!("question {question}: {error}"));
        let described: serde_json::Value = serde_json::from_slice(&described.unwrap()).unwrap();
        assert_eq!(described["number"], generation.number);
        // The next question is sent, and its connection closes instead of an answer.
        fixture.link.close_at_next_answer();
    }
}
