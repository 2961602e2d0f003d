//! The doctor's findings from facts, and its output for people and programs.

#![allow(clippy::unwrap_used, clippy::panic)]
use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use neptune_agent_core::{
    devices::offered::OfferedUnit,
    domain::device::{DevicePart, DeviceUnit},
};
use neptune_edge::commands::doctor::{
    assess::assess,
    facts::{
        Answer, CallError, CallFacts, CertificateFacts, CertificateFile, Checked, CloudLinkFacts,
        CloudWorkerFacts, DataDirFacts, DataState, DatabaseState, DeviceFacts, DiskFacts,
        DoctorFacts, DownloadFacts, EdgeMeshFacts, EngineFacts, LocalBrokerAccess,
        LocalBrokerAnswer, LocalBrokerFacts, NameAnswer, NeededSecret, Network, NetworkFacts,
        PeerListenFacts, RegistryFacts, RuntimeDir, RuntimeDirFacts, SecretAccess, SecretDir,
        SecretDirFacts, SecretFile, VolumeDirFacts,
    },
    report::{Level, has_errors, json, text},
};
use neptune_wire::{NodeProblem, NodeProblemReason};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn answered(address: &str) -> CallFacts {
    let took = Duration::from_millis(12);
    CallFacts { address: address.parse().unwrap(), result: Ok(Answer::Http(404)), took }
}

fn secret_file(name: &str, mode: u32) -> SecretFile {
    let access = SecretAccess { owner: 0, mode };
    SecretFile { name: name.into(), access, is_readable: true }
}

/// A node without problems.
fn healthy() -> DoctorFacts {
    let certificate = CertificateFacts {
        subject: "CN=Neptune broker CA".into(),
        not_before: time("2025-01-01T00:00:00Z"),
        not_after: time("2035-01-01T00:00:00Z"),
    };
    DoctorFacts {
        now: time("2026-08-01T12:00:00.5Z"),
        node: "edge0".into(),
        user: 998,
        engine: EngineFacts {
            socket: "/var/run/docker.sock".into(),
            version: Ok("docker 20.10.24".into()),
        },
        registries: None,
        network: None,
        devices: None,
        volumes: Vec::new(),
        data: DataDirFacts {
            path: "/var/lib/neptune".into(),
            state: Ok(DataState::Present {
                owner: 998,
                can_write: Ok(()),
                is_in_use: true,
                database: DatabaseState::Valid {
                    objects: 3,
                    written: Some(time("2026-08-01T11:59:59Z")),
                    problems: Vec::new(),
                },
            }),
        },
        disk: Ok(DiskFacts { free: 20 << 30, size: 64 << 30, reserve: 512 << 20 }),
        key_pin: Ok(Some("sha256:00ff".into())),
        seal_key: Ok(Some("sha256:11ff".into())),
        runtime_dir: RuntimeDirFacts {
            path: "/run/neptune".into(),
            state: Ok(Some(RuntimeDir { mode: 0o700, is_in_memory: true })),
        },
        local: LocalBrokerFacts {
            url: "mqtt://127.0.0.1:1884".into(),
            access: LocalBrokerAccess::LoginPerWorker,
            answer: LocalBrokerAnswer::Connected(Ok(())),
        },
        withholds_models: false,
        peers: None,
        downloads: DownloadFacts::default(),
        cloud: CloudLinkFacts {
            url: "mqtts://edge0:***@broker.example.org:30883".into(),
            filter: "neptune/edge0/downstream/#".into(),
            is_by_event_bus: false,
            answer: Ok(()),
        },
        is_synchronized: Some(true),
        cloud_workers: vec![
            CloudWorkerFacts {
                host: "digits-cloud-1a2b3c4d.default.svc.cluster.local".into(),
                used_by: "default/jointinferenceservices/digits".into(),
                addresses: Ok(vec!["10.96.0.7".parse().unwrap()]),
                is_service: true,
                name: None,
                call: Some(answered("10.96.0.7:5000")),
            },
            CloudWorkerFacts {
                host: "192.0.2.7".into(),
                used_by: "default/jointinferenceservices/helmet".into(),
                addresses: Ok(vec!["192.0.2.7".parse().unwrap()]),
                is_service: false,
                name: None,
                call: Some(answered("192.0.2.7:20007")),
            },
        ],
        edge_mesh: EdgeMeshFacts {
            has_interface: true,
            dns: NameAnswer::Unknown,
            unroutable: Vec::new(),
        },
        secrets: SecretDirFacts {
            path: "/etc/neptune/secrets".into(),
            state: Ok(Some(SecretDir {
                access: SecretAccess { owner: 0, mode: 0o750 },
                files: vec![secret_file("llm", 0o440)],
            })),
            needed: vec![NeededSecret {
                name: "llm".into(),
                used_by: "default/jointinferenceservices/assistant".into(),
                problem: None,
            }],
        },
        name_servers: Vec::new(),
        certificates: vec![CertificateFile {
            flag: "--mqtt-ca-file",
            path: "/etc/neptune/mqtt-ca.crt".into(),
            certificates: Ok(vec![certificate]),
        }],
    }
}

/// A node with warnings only.
fn warnings() -> DoctorFacts {
    let mut facts = healthy();
    facts.user = 0;
    facts.is_synchronized = Some(false);
    facts.disk = Ok(DiskFacts { free: 700 << 20, size: 64 << 30, reserve: 512 << 20 });
    facts.certificates[0].certificates.as_mut().unwrap()[0].not_after =
        time("2026-08-20T00:00:00Z");
    facts.local.access = LocalBrokerAccess::Anonymous;
    facts.withholds_models = true;
    facts.secrets.state.as_mut().unwrap().as_mut().unwrap().files[0].access.mode = 0o644;
    facts.cloud_workers.clear();
    facts
}

/// A node on which every check fails.
fn failing() -> DoctorFacts {
    let mut facts = healthy();
    facts.now = time("1970-01-01T00:03:00Z");
    facts.data.state = Ok(DataState::Present {
        owner: 0,
        can_write: Err("Permission denied (os error 13)".into()),
        is_in_use: false,
        database: DatabaseState::Absent,
    });
    facts.disk = Ok(DiskFacts { free: 100 << 20, size: 64 << 30, reserve: 512 << 20 });
    facts.engine.version =
        Err("Docker does not answer on /var/run/docker.sock: the socket does not exist".into());
    facts.local.answer = LocalBrokerAnswer::Free(false);
    facts.cloud.answer = Err("no response within 10 s".into());
    facts.secrets.needed[0].problem =
        Some("file /etc/neptune/secrets/llm not found on the node; create it".into());
    facts.cloud_workers[0].addresses = Err("Name or service not known".into());
    facts.cloud_workers[0].call = None;
    facts
}

/// Compares with the committed file; with `BLESS` set writes it instead.
fn golden(name: &str, output: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unit/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, output).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(output, expected, "{name} differs; if that is meant, run the test with BLESS=1");
}

#[test]
fn output_equals_golden_files() {
    for (name, facts, expected) in [
        ("healthy", healthy(), false),
        ("warnings", warnings(), false),
        ("failing", failing(), true),
    ] {
        let findings = assess(&facts);
        golden(&format!("{name}.txt"), &text(&findings));
        golden(&format!("{name}.json"), &json(&findings));
        assert_eq!(has_errors(&findings), expected, "{name}");
    }
}

#[test]
fn each_warning_and_error_has_a_remedy() {
    for finding in [warnings(), failing()].iter().flat_map(assess) {
        assert_eq!(finding.help.is_some(), finding.level != Level::Ok, "{finding:?}");
    }
}

#[track_caller]
fn assert_finding(change: impl FnOnce(&mut DoctorFacts), level: Level, seen: &str) {
    let mut facts = healthy();
    change(&mut facts);
    let findings = assess(&facts);
    let matching = findings.iter().find(|finding| finding.seen.contains(seen));
    let matching = matching.unwrap_or_else(|| panic!("{seen} is not in {findings:#?}"));
    assert_eq!(matching.level, level, "{matching:?}");
    let others = findings.iter().filter(|finding| *finding != matching);
    assert_eq!(others.filter(|finding| finding.level != Level::Ok).count(), 0, "{findings:#?}");
}

#[test]
fn address_for_peers_is_checked_with_and_without_an_agent() {
    let peers = |state, is_running| {
        move |facts: &mut DoctorFacts| {
            facts.peers = Some(PeerListenFacts { listen: "10.0.0.7:8417".parse().unwrap(), state });
            if let Ok(DataState::Present { is_in_use, .. }) = &mut facts.data.state {
                *is_in_use = is_running;
            }
        }
    };
    assert_finding(peers(Ok(true), true), Level::Ok, "accepts connections");
    assert_finding(peers(Ok(false), true), Level::Warning, "does not listen on 10.0.0.7:8417");
    assert_finding(peers(Ok(false), false), Level::Ok, "10.0.0.7:8417 is free");
    assert_finding(peers(Ok(true), false), Level::Error, "10.0.0.7:8417 is in use");
    let missing = || Err("Cannot assign requested address".to_owned());
    assert_finding(peers(missing(), true), Level::Error, "cannot fetch from 10.0.0.7:8417");
}

#[test]
fn proxy_and_hours_of_downloads_are_named() {
    let proxy = "through proxy http://proxy:3128/, except the hosts of --no-proxy";
    let window = "updates at 01:00-05:00; it is 14:03 CET (+01:00) now";
    for (with_proxy, with_window, seen) in [
        (true, false, proxy.to_owned()),
        (false, true, window.to_owned()),
        (true, true, format!("{proxy}; {window}")),
    ] {
        let downloads = DownloadFacts {
            proxy: with_proxy.then(|| "http://proxy:3128/".into()),
            window: with_window.then(|| ("01:00-05:00".into(), "14:03 CET (+01:00)".into())),
        };
        assert_finding(|facts| facts.downloads = downloads, Level::Ok, &seen);
    }
}

#[test]
fn each_problem_has_its_own_finding() {
    let data = |state| move |facts: &mut DoctorFacts| facts.data.state = state;
    assert_finding(data(Err("no response within 10 s".into())), Level::Error, "no response");
    assert_finding(
        data(Ok(DataState::Absent { can_create: Ok(()) })),
        Level::Ok,
        "does not exist yet",
    );
    assert_finding(
        data(Ok(DataState::Absent { can_create: Err("Permission denied".into()) })),
        Level::Error,
        "cannot create it",
    );
    let present =
        |database| DataState::Present { owner: 998, can_write: Ok(()), is_in_use: false, database };
    assert_finding(
        data(Ok(present(DatabaseState::Invalid("database x was written by a newer".into())))),
        Level::Error,
        "newer",
    );
    assert_finding(data(Ok(present(DatabaseState::Absent))), Level::Ok, "no database yet");
    let valid = |written, problems| DatabaseState::Valid {
        objects: 1,
        written: Some(time(written)),
        problems,
    };
    let ahead = valid("2026-08-02T12:00:00Z", Vec::new());
    assert_finding(data(Ok(present(ahead))), Level::Warning, "was written at 2026-08-02");
    let message = "another agent uses the node name edge0".to_owned();
    let in_use = NodeProblem { reason: NodeProblemReason::NodeNameInUse, message };
    let database = valid("2026-08-01T11:59:59Z", vec![in_use]);
    assert_finding(data(Ok(present(database.clone()))), Level::Ok, "not in use by an agent");
    let running = DataState::Present { owner: 998, can_write: Ok(()), is_in_use: true, database };
    assert_finding(data(Ok(running)), Level::Error, "another agent uses the node name edge0");
    let podman = |facts: &mut DoctorFacts| facts.engine.version = Ok("podman 4.3.1".into());
    assert_finding(podman, Level::Ok, "podman 4.3.1 on /var/run/docker.sock");
    assert_finding(|facts| facts.cloud.is_by_event_bus = true, Level::Ok, "is part of edgecore");
    assert_finding(|facts| facts.is_synchronized = None, Level::Ok, "cannot determine");
    assert_finding(|facts| facts.seal_key = Ok(None), Level::Ok, "at its first start");
    let damaged = |facts: &mut DoctorFacts| facts.seal_key = Err("seal.key is damaged".into());
    assert_finding(damaged, Level::Error, "seal.key is damaged");
    assert_finding(|facts| facts.runtime_dir.state = Ok(None), Level::Ok, "does not exist");
    for (mode, is_in_memory, text) in
        [(0o700, false, "is not in memory"), (0o777, true, "has mode 0777")]
    {
        let change = |facts: &mut DoctorFacts| {
            facts.runtime_dir.state = Ok(Some(RuntimeDir { mode, is_in_memory }));
        };
        assert_finding(change, Level::Warning, text);
    }
    let denied = |facts: &mut DoctorFacts| facts.runtime_dir.state = Err("denied".into());
    assert_finding(denied, Level::Error, "/run/neptune: denied");
    assert_finding(|facts| facts.key_pin = Ok(None), Level::Ok, "the agent creates it");
    assert_finding(|facts| facts.key_pin = Err("tls.key: denied".into()), Level::Error, "denied");
    assert_finding(
        |facts| facts.disk = Err("no response within 10 s".into()),
        Level::Error,
        "no response",
    );
    assert_finding(
        |facts| facts.local.answer = LocalBrokerAnswer::Connected(Err("Connection refused".into())),
        Level::Error,
        "Connection refused",
    );
    assert_finding(
        |facts| facts.local.access = LocalBrokerAccess::Shared,
        Level::Ok,
        "its own rules decide who can report for a worker",
    );
    let own_servers = |facts: &mut DoctorFacts| {
        facts.name_servers = vec!["169.254.96.16".parse().unwrap()];
        facts.cloud_workers[0].addresses = Err("169.254.96.16 does not know the name".into());
    };
    assert_finding(own_servers, Level::Error, "169.254.96.16 does not know the name");
    assert_finding(
        |facts| facts.local.answer = LocalBrokerAnswer::Free(true),
        Level::Ok,
        "is free",
    );
}

#[test]
fn each_problem_of_the_secrets_has_its_own_finding() {
    let dir = |change: fn(&mut SecretDir)| {
        move |facts: &mut DoctorFacts| {
            change(facts.secrets.state.as_mut().unwrap().as_mut().unwrap());
        }
    };
    assert_finding(
        dir(|dir| dir.access.mode = 0o755),
        Level::Warning,
        "every user of the node has access to /etc/neptune/secrets (mode 755)",
    );
    assert_finding(
        dir(|dir| dir.files[0].access.mode = 0o444),
        Level::Warning,
        "every user of the node has access to /etc/neptune/secrets/llm (mode 444)",
    );
    assert_finding(
        dir(|dir| dir.files[0].access.mode = 0o460),
        Level::Warning,
        "the group of /etc/neptune/secrets/llm can replace it",
    );
    assert_finding(
        dir(|dir| dir.files[0].access.owner = 1000),
        Level::Warning,
        "/etc/neptune/secrets/llm belongs to user 1000, who can replace it",
    );
    assert_finding(
        dir(|dir| {
            let other = secret_file("other", 0o400);
            dir.files.push(SecretFile { is_readable: false, ..other });
        }),
        Level::Warning,
        "user 998 cannot read /etc/neptune/secrets/other",
    );
    assert_finding(
        |facts| facts.secrets.needed[0].problem = Some("file llm is not readable".into()),
        Level::Error,
        "default/jointinferenceservices/assistant: file llm is not readable",
    );
    assert_finding(
        |facts| facts.secrets.state = Ok(None),
        Level::Error,
        "/etc/neptune/secrets does not exist; default/jointinferenceservices/assistant needs",
    );
    assert_finding(
        |facts| facts.secrets.state = Err("Permission denied".into()),
        Level::Error,
        "/etc/neptune/secrets: Permission denied",
    );
    let unused = |facts: &mut DoctorFacts| {
        facts.secrets.state = Ok(None);
        facts.secrets.needed.clear();
    };
    assert_finding(unused, Level::Ok, "does not exist; no service of this node needs it");
    let mut root = healthy();
    root.user = 0;
    let Ok(DataState::Present { owner, .. }) = &mut root.data.state else { panic!("present") };
    *owner = 0;
    let findings = assess(&root);
    let seen: Vec<_> = findings.iter().map(|finding| &*finding.seen).collect();
    let group = "the group of /etc/neptune/secrets/llm has access to it (mode 440)";
    assert!(seen.contains(&group), "{seen:#?}");
}

#[test]
fn registry_credentials_are_checked_if_the_option_names_a_file() {
    let file = |state: Checked<(usize, u32)>| {
        |facts: &mut DoctorFacts| {
            facts.registries =
                Some(RegistryFacts { path: "/etc/neptune/registries.json".into(), state });
        }
    };
    assert_finding(file(Ok((2, 0o640))), Level::Ok, "/etc/neptune/registries.json has 2 logins");
    assert_finding(file(Ok((2, 0o644))), Level::Warning, "every user of the node can read");
    let malformed = Err("not JSON in the format of Docker's config.json".to_owned());
    assert_finding(file(malformed), Level::Warning, "images are pulled without credentials");
}

#[test]
fn embedded_broker_listens_on_the_gateway_of_the_network() {
    let network = |listen: Option<&str>, state: Checked<Option<Network>>| {
        let listen = listen.map(|listen| listen.parse().unwrap());
        move |facts: &mut DoctorFacts| {
            facts.network = Some(NetworkFacts { name: "workers".into(), listen, state });
        }
    };
    let with = |driver: &str, gateway: Option<&str>| {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        let subnets = vec![("172.18.0.0/16".parse().unwrap(), gateway)];
        Ok(Some(Network { driver: driver.to_owned(), subnets }))
    };
    let gateway = Some("172.18.0.1");
    for (listen, state, level, seen) in [
        (Some("172.18.0.1:1884"), with("bridge", gateway), Level::Ok, "workers reaches"),
        (Some("172.18.0.1:1884"), with("bridge", None), Level::Ok, "workers reaches"),
        (Some("172.17.0.1:1884"), with("bridge", None), Level::Warning, "not on the gateway"),
        (Some("172.18.0.2:1884"), with("bridge", gateway), Level::Warning, "not on the gateway"),
        (Some("172.18.0.1:1884"), with("macvlan", gateway), Level::Error, "driver macvlan"),
        (Some("172.18.0.1:1884"), Ok(None), Level::Error, "does not exist"),
        (Some("172.18.0.1:1884"), Err("no response".into()), Level::Error, "no response"),
        (None, with("bridge", gateway), Level::Ok, "--local-broker must be reachable"),
    ] {
        assert_finding(network(listen, state), level, seen);
    }
}

#[test]
fn longest_valid_certificate_of_a_bundle_decides() {
    let valid = |not_after: &str| CertificateFacts {
        subject: format!("CN={not_after}"),
        not_before: time("2020-01-01T00:00:00Z"),
        not_after: time(&format!("{not_after}T00:00:00Z")),
    };
    let file = |certificates: Checked<Vec<CertificateFacts>>| {
        move |facts: &mut DoctorFacts| facts.certificates[0].certificates = certificates
    };
    assert_finding(
        file(Ok(vec![valid("2021-01-01"), valid("2030-01-01")])),
        Level::Ok,
        "2 certificates",
    );
    assert_finding(
        file(Ok(vec![valid("2021-01-01"), valid("2022-01-01")])),
        Level::Error,
        "expired at 2022-01-01",
    );
    assert_finding(file(Ok(vec![valid("2026-08-30")])), Level::Warning, "expires at 2026-08-30");
    assert_finding(file(Ok(Vec::new())), Level::Error, "contains no PEM certificate");
    assert_finding(file(Err("No such file or directory".into())), Level::Error, "No such file");
    let mut later = valid("2040-01-01");
    later.not_before = time("2030-01-01T00:00:00Z");
    assert_finding(file(Ok(vec![later])), Level::Error, "not valid before 2030-01-01");
}

#[test]
fn each_failed_call_names_its_cause() {
    let cases = [
        (0, CallError::Refused, 1, "edgemesh-agent died"),
        (0, CallError::ConnectTimeout, 3_000, "no rule for the Service"),
        (0, CallError::NoRoute, 1, "no rule for the Service"),
        (0, CallError::Closed, 3, "no Endpoints"),
        (0, CallError::Closed, 3_800, "edgemesh-agent on the cloud worker's node"),
        (0, CallError::Silent, 9_500, "the tunnel to that node is down"),
        (1, CallError::Refused, 1, "nothing listens there"),
        (1, CallError::ConnectTimeout, 3_000, "firewalls"),
    ];
    for (worker, error, millis, cause) in cases {
        let mut facts = healthy();
        let call = facts.cloud_workers[worker].call.as_mut().unwrap();
        (call.result, call.took) = (Err(error), Duration::from_millis(millis));
        let findings = assess(&facts);
        let errors: Vec<_> = findings.iter().filter(|it| it.level == Level::Error).collect();
        let [error] = errors[..] else { panic!("{errors:?}") };
        assert!(error.help.as_deref().unwrap().contains(cause), "{error:?}");
        assert_eq!(findings.iter().any(|it| it.check == "edgemesh"), worker == 0, "{findings:?}");
    }
}

/// Calls through `EdgeMesh` end alike for several causes: a worker that refuses while calls queue is
/// as silent as a tunnel that is down.
#[test]
fn silent_call_names_the_cloud_worker_before_the_tunnel() {
    for (error, seconds) in [(CallError::Silent, 9), (CallError::Closed, 4)] {
        let mut facts = healthy();
        let call = facts.cloud_workers[0].call.as_mut().unwrap();
        (call.result, call.took) = (Err(error), Duration::from_secs(seconds));
        let findings = assess(&facts);
        let help = findings.iter().find_map(|it| it.help.clone()).unwrap();
        let [worker, agent, tunnel] =
            ["(1) the cloud worker", "(2) edgemesh-agent", "(3) the tunnel"]
                .map(|cause| help.find(cause));
        assert!(worker.is_some() && worker < agent && agent < tunnel, "{help}");
    }
}

#[test]
fn refused_name_server_beside_a_failed_call_is_not_ok() {
    let mut facts = healthy();
    facts.edge_mesh.dns = NameAnswer::Refused;
    let call = facts.cloud_workers[0].call.as_mut().unwrap();
    // A router answers that the address is unreachable, although this machine has a route.
    call.result = Err(CallError::NoRoute);
    let findings = assess(&facts);
    let edge_mesh = findings.iter().find(|it| it.check == "edgemesh").unwrap();
    assert_ne!(edge_mesh.level, Level::Ok, "{edge_mesh:?}");
    let help = findings.iter().find_map(|it| it.help.clone()).unwrap();
    assert!(help.contains("start edgemesh-agent") && !help.contains("default route"), "{help}");
}

#[test]
fn edgemesh_is_checked_where_containers_use_its_name_server() {
    let with_dns = |change: fn(&mut EdgeMeshFacts)| {
        move |facts: &mut DoctorFacts| {
            facts.name_servers = vec!["169.254.96.16".parse().unwrap()];
            change(&mut facts.edge_mesh);
        }
    };
    assert_finding(with_dns(|_| ()), Level::Ok, "169.254.96.16 answers DNS");
    assert_finding(with_dns(|it| it.has_interface = false), Level::Error, "does not exist");
    let unroutable = |it: &mut EdgeMeshFacts| it.unroutable = vec!["10.96.0.7".parse().unwrap()];
    assert_finding(with_dns(unroutable), Level::Error, "no route to 10.96.0.7");
    let refused = |it: &mut EdgeMeshFacts| it.dns = NameAnswer::Refused;
    assert_finding(with_dns(refused), Level::Error, "its name server refuses");
}

#[test]
fn deleted_data_directory_of_a_running_agent_is_named() {
    let mut facts = healthy();
    facts.local.answer = LocalBrokerAnswer::Free(false);
    let finding = |facts: &DoctorFacts| {
        let mut findings = assess(facts);
        findings.retain(|finding| finding.check == "data directory");
        findings.remove(0)
    };
    assert_eq!(finding(&facts).level, Level::Ok);
    facts.data.state = Ok(DataState::Absent { can_create: Ok(()) });
    let reported = finding(&facts);
    assert_eq!(reported.level, Level::Error);
    assert!(format!("{reported:?}").contains("restart the agent"), "{reported:?}");
    facts.data.state = Ok(DataState::Present {
        owner: 998,
        can_write: Ok(()),
        is_in_use: false,
        database: DatabaseState::Absent,
    });
    assert_eq!(finding(&facts).level, Level::Error);
    facts.local.answer = LocalBrokerAnswer::Free(true);
    assert_eq!(finding(&facts).level, Level::Ok);
}

#[test]
fn directory_for_volumes_that_is_missing_or_full_is_named() {
    let volumes = |disk: Result<DiskFacts, String>| {
        let volumes = vec![VolumeDirFacts { path: "/srv/cameras".into(), disk }];
        let findings = assess(&DoctorFacts { volumes, ..healthy() });
        let volumes = findings.into_iter().find(|finding| finding.check == "volumes").unwrap();
        (volumes.level, volumes.seen)
    };
    let disk = |free| Ok(DiskFacts { free, size: 1024, reserve: 0 });
    assert_eq!(volumes(disk(512)), (Level::Ok, "/srv/cameras: 512 B of 1.0 KiB free".to_owned()));
    assert_eq!(volumes(disk(64)).0, Level::Warning);
    let (level, seen) = volumes(Err("No such file or directory (os error 2)".to_owned()));
    assert_eq!(level, Level::Error);
    assert!(seen.starts_with("/srv/cameras of --allow-volume-dir: No such file"), "{seen}");
}

#[test]
fn devices_that_cannot_be_given_to_containers_are_named() {
    let unit = |resource: &str, part: DevicePart| {
        let (name, resource) = (format!("{resource}=x"), resource.to_owned());
        let unit = DeviceUnit {
            name: name.clone(),
            resource: resource.clone(),
            identity: String::new(),
            parts: vec![part],
        };
        OfferedUnit { name, resource, unit: Ok(unit) }
    };
    let node = |path: &str, group| DevicePart::Node {
        path: path.to_owned(),
        target: path.to_owned(),
        group,
    };
    let absent = OfferedUnit {
        name: "a.b/cam=/dev/cam".to_owned(),
        resource: "a.b/cam".to_owned(),
        unit: Err("/dev/cam".to_owned()),
    };
    let findings = |units: Vec<OfferedUnit>| {
        let engine = neptune_agent_core::devices::engine_support::EngineFacts {
            version: "docker 20.10.24".to_owned(),
            has_cdi: false,
            runtimes: Vec::new(),
        };
        let devices = Some(DeviceFacts { units: Ok(units), engine: Some(Ok(engine)) });
        let findings = assess(&DoctorFacts { devices, ..healthy() });
        let devices = findings.into_iter().filter(|finding| finding.check == "devices");
        let text = |it: neptune_edge::commands::doctor::report::Finding| {
            format!("{:?} {} -> {}", it.level, it.seen, it.help.unwrap_or_default())
        };
        devices.map(text).collect::<Vec<_>>()
    };
    let good = findings(vec![
        unit("a.b/cam", node("/dev/video0", Some(44))),
        unit("a.b/cam", node("/dev/video1", None)),
    ]);
    assert_eq!(good, ["Ok a.b/cam (2) -> "]);
    let bad = findings(vec![
        unit("a.b/gpu", DevicePart::Cdi("nvidia.com/gpu=0".to_owned())),
        absent,
        unit("a.b/cam", node("/dev/video0", Some(0))),
        unit("a.b/other", node("/dev/video0", None)),
    ]);
    assert_eq!(bad.len(), 4, "{bad:#?}");
    assert!(bad[0].starts_with("Error a.b/gpu=x: docker 20.10.24 has no CDI -> use docker 25"));
    assert!(bad[1].starts_with("Warning /dev/cam of a.b/cam is not there -> connect it"));
    assert!(bad[2].contains("/dev/video0 is in several units: a.b/cam=x, a.b/other=x"));
    assert!(bad[3].starts_with("Warning /dev/video0 belongs to group 0"));
}
