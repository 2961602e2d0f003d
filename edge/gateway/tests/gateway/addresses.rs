//! The addresses of the cloud's name, which change while clients ask.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    grpc_server::{self, GrpcServer, infer},
    harness::{Server, Setup},
    oip::{INFER, cloud_model, edge_model, rows},
};

/// No name server knows it.
const HOST: &str = "big.ns1.svc.cluster.local";

fn cloud(port: u16, address: IpAddr) -> Value {
    json!({"cloud": {
        "url": format!("http://{HOST}:{port}"), "allowPlainHttp": true,
        "modelName": "big", "addresses": {HOST: address},
    }})
}

/// A recreated Service has another `ClusterIP`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_address_of_the_cloud_fails_no_request() {
    let edge = Server::start(edge_model).await;
    let old = Server::start(cloud_model).await;
    let port = old.address.port();
    let other = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
    let new = Server::start_at((other, port).into(), cloud_model).await;
    let setup = Setup::start(edge.address, None, cloud(port, old.address.ip())).await;
    let (setup, is_done) = (Arc::new(setup), Arc::new(AtomicBool::new(false)));
    let asked = Arc::new(AtomicUsize::new(0));
    let clients = (0..4).map(|_| {
        let (setup, is_done, asked) =
            (Arc::clone(&setup), Arc::clone(&is_done), Arc::clone(&asked));
        tokio::spawn(async move {
            let mut others = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                let answer = setup.post(INFER, rows(&[0.5])).await;
                if (answer.status.as_u16(), answer.decision()) != (200, ("cloud", "hard")) {
                    others.push(answer);
                }
                asked.fetch_add(1, Ordering::Relaxed);
            }
            others
        })
    });
    let clients: Vec<_> = clients.collect();
    let until = async |what: &str, is_so: &(dyn Fn() -> bool + Sync)| {
        let begin = tokio::time::timeout(Duration::from_secs(30), async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(begin.await.is_ok(), "{what} after {} requests", asked.load(Ordering::Relaxed));
    };
    until("the old address is called", &|| old.received().len() > 50).await;
    let path = setup.config_path();
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["cloud"]["addresses"][HOST] = json!(other);
    std::fs::write(path.with_extension("new"), config.to_string()).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    until("the new address is called", &|| new.received().len() > 200).await;
    is_done.store(true, Ordering::Relaxed);
    let others = join_all(clients).await.into_iter().flat_map(Result::unwrap).collect::<Vec<_>>();
    assert!(others.is_empty(), "{} of {asked:?}: {:?}", others.len(), others.first());
    let host = &new.received()[0].headers["host"];
    assert_eq!(host, &format!("{HOST}:{port}"), "the server sees the name");
}

#[tokio::test]
async fn grpc_uses_the_address_of_the_name() {
    let edge = GrpcServer::start(grpc_server::edge_model).await;
    let server = GrpcServer::start(grpc_server::cloud_model).await;
    let named = json!({"cloud": {
        "grpcUrl": format!("http://{HOST}:{}", server.address.port()), "allowPlainHttp": true,
        "addresses": {HOST: server.address.ip()},
    }});
    let setup = grpc_server::setup(edge.address, server.address, named).await;
    let answer = infer(&setup, &[], grpc_server::rows(&[0.5], true)).await.unwrap();
    assert_eq!(grpc_server::decision(&answer), grpc_server::parts("cloud", "hard"));
}
