//! Neptune end to end: kubectl on one side, containers on the other.
#![allow(clippy::unwrap_used, clippy::panic)]

/// Makes one test per function and transport: `mqtt::<name>`, `eventbus::<name>` with the emulator,
/// and `kubeedge::<name>` with a real `KubeEdge`, which `hack/real-kubeedge.sh` runs.
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

        mod kubeedge {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs cloudcore and edgecore: ./hack/real-kubeedge.sh"]
                async fn $test() {
                    let broker = neptune_e2e::NodeBroker::Mosquitto;
                    super::$test(neptune_e2e::Transport::KubeEdge(broker)).await;
                }
            )+
        }
    };
}

/// Makes one test per function with the fleet on a rumqttd: `rumqttd::<name>`. Together with
/// `demo.rs` and `many_objects.rs` these are the tests of what the demo relies on.
macro_rules! on_rumqttd {
    ($($test:ident),+ $(,)?) => {
        mod rumqttd {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(neptune_e2e::Transport::Rumqttd).await;
                }
            )+
        }
    };
}

mod burst;
mod closed_loop;
mod dataset;
mod demo;
mod digits;
mod failures;
mod federated;
mod flower;
mod forged;
mod helmet;
mod join;
mod many_objects;
mod model;
mod offline;
mod peers;
mod placement;
mod power;
mod power_off;
mod replica;
mod rights;
mod sample_model;
mod samples;
mod serving;
mod session;
mod tiers;
mod training_kills;
mod training_on_node;
mod transformers;
mod without_code;
mod workers;
