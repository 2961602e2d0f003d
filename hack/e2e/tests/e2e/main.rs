//! Neptune as a user meets it: kubectl on one side, containers on the other.
#![allow(clippy::unwrap_used, clippy::panic)]

/// Makes a test of each of these for either transport, named after it: `mqtt::...` and `eventbus::...`.
macro_rules! over_each_transport {
    ($($test:ident),+ $(,)?) => {
        mod mqtt {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(neptune_e2e::Transport::Mqtt).await;
                }
            )+
        }

        mod eventbus {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(neptune_e2e::Transport::EventBus).await;
                }
            )+
        }
    };
}

mod dataset;
mod demo;
mod digits;
mod forged;
mod helmet;
mod model;
mod offline;
mod power;
mod rights;
mod sample;
mod serving;
mod trouble;
