PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE tt_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tt_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO tt_alembic_version VALUES('0004');
CREATE TABLE tt_anatomies (
	digest VARCHAR(64) NOT NULL, 
	document BLOB NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_anatomies PRIMARY KEY (digest)
);
CREATE TABLE tt_comparisons (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	document BLOB NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_comparisons PRIMARY KEY (id), 
	CONSTRAINT fk_tt_comparisons_study_id FOREIGN KEY(study_id) REFERENCES tt_studies (id)
);
INSERT INTO tt_comparisons VALUES(1,1,X'789cbd534baedb300cbc0bd76ae000fda0be4137ef0245203032ed08912543928b1a81ef5e52fec40f29ba288a6693502487c319e60126f84cbea198a0fefe008f3d410d841d45508029d9cef7e433d40f1862e822f67b7e566093be6222673db7e538d2ac76902ba5fc070c13fa21246a5e605a7489e68b821846df2cbcb8cd504ada36507f517075c1dc97ccbec08136e3da6c8387ba5290b01f1c25dd4bfdf954a9ea7466f09431666a3432ad73b57d4e950c4663c6886612c20ba6fc8831441d9181b983712092e3e807e992e261f26878b66c016ff8c6547218ce1abb48b428e047e714b0048de558bf035d724370d65862b68f5966b414c91b416c5dc0fcf923a35a3f8c3995f578f9148a7b9799eb71189c65519fcc992abfb736a6ac0d3aa757e481f0ae7bea439cf475ca65e0d6234ca409ad1be392296ef2f7ddfa46dc8b986e22f58d7de3385bf65c41cf2631043f34c242360de3f00c5de838f879926fa1db632c3e8211473f981bfa8e0b2fc5fec3ea9bb3ec9a6facef7e7badec06974fc5e96290b15f3f2dbeb3e70abef9d67a9b2710f0a3e425d052bdbd3c2f608d3759578f5eb55b12ef655edf1615f761eb5557db5cd662bba0239d86e46aa4f0f53f75dc74e9d9573d40fce7f5fee96dfc954e97f9179ea9a517','2026-12-01 04:16:22.615626');
CREATE TABLE tt_environments (
	strict_key VARCHAR(64) NOT NULL, 
	loose_key VARCHAR(64) NOT NULL, 
	device TEXT NOT NULL, 
	document TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_environments PRIMARY KEY (strict_key)
);
INSERT INTO tt_environments VALUES('c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','8bae64f2985871437ad631c4adcc199d198d44bce69a04b3f3d4b6feb05b58b0','NVIDIA H200','{"device":"NVIDIA H200","capability":"sm_90","threads":0,"driver":"570.1","cuda":"12.8","python":"3.11.7","packages":{"torch":"2.11.0","lightning-thunder":"0.2.6"}}','2026-12-01 04:16:22.567749');
CREATE TABLE tt_failures (
	trial_id INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	phase VARCHAR(32) NOT NULL, 
	cause TEXT NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_tt_failures PRIMARY KEY (trial_id), 
	CONSTRAINT fk_tt_failures_trial_id FOREIGN KEY(trial_id) REFERENCES tt_trials (id)
);
INSERT INTO tt_failures VALUES(3,'wrong','compile','','{"kind":"wrong","phase":"compile","message":"no","group":"","log":""}');
CREATE TABLE tt_leases (
	study VARCHAR(200) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	host TEXT NOT NULL, 
	machine VARCHAR(64) NOT NULL, 
	process_id INTEGER NOT NULL, 
	process_started DOUBLE NOT NULL, 
	beats INTEGER NOT NULL, 
	is_cancelled BOOLEAN NOT NULL, 
	since DATETIME NOT NULL, 
	CONSTRAINT pk_tt_leases PRIMARY KEY (study)
);
CREATE TABLE tt_measurements (
	trial_id INTEGER NOT NULL, 
	repeats INTEGER NOT NULL, 
	encoding VARCHAR(32) NOT NULL, 
	samples BLOB NOT NULL, 
	CONSTRAINT pk_tt_measurements PRIMARY KEY (trial_id), 
	CONSTRAINT fk_tt_measurements_trial_id FOREIGN KEY(trial_id) REFERENCES tt_trials (id)
);
INSERT INTO tt_measurements VALUES(1,2,'f8',X'789c636000810ff6a16070d51e0018850442');
INSERT INTO tt_measurements VALUES(2,2,'f8',X'789c636000810ff6a16070d51e0018850442');
CREATE TABLE tt_programs (
	"key" VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	loose_hash VARCHAR(64) NOT NULL, 
	document BLOB NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_programs PRIMARY KEY ("key")
);
INSERT INTO tt_programs VALUES('d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',X'789ca551c96e83400cfd179fa7882e878a5f8922e4800956070f9da50d8afaef355b68a52a8732276fef3dfbcd151aef2496243514500f829d03032d865673dcf994c93a17a85cf84e3b9ff2b93e4071b8024b4d17287203678f7d3b45ba3ca94a74be6a3391ac495245768236b32c845ef16f3c5d7acb59fa1467cad062aff8c38b793d1aa8e33066d05887f1f949473dbd27f6144a55548e066da02ff34f9c4eba14f769eb2487f283e973a918a82c8650f276e2430ee35c45d6ce4a9b5db395f9f10e6aacd362f8afeefab13fabf60f7b2b972442f1b8aaddfb1c15a40b76bda575af90ba0efda084d33a81e3d45ac2725b4f2bd1230bcbf96685270c4e26ec37e4ebfc52','2026-12-01 04:16:22.564586');
CREATE TABLE tt_recipe_plans (
	recipe_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	program_hash VARCHAR(64) NOT NULL, 
	program_loose_hash VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_tt_recipe_plans PRIMARY KEY (recipe_id, position), 
	CONSTRAINT fk_tt_recipe_plans_recipe_id FOREIGN KEY(recipe_id) REFERENCES tt_recipes (id)
);
INSERT INTO tt_recipe_plans VALUES(1,0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb');
CREATE TABLE tt_recipes (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	model_key VARCHAR(64) NOT NULL, 
	document TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_recipes PRIMARY KEY (id), 
	CONSTRAINT uq_tt_recipes_study_id_digest UNIQUE (study_id, digest), 
	CONSTRAINT fk_tt_recipes_study_id FOREIGN KEY(study_id) REFERENCES tt_studies (id)
);
INSERT INTO tt_recipes VALUES(1,1,'42f6e079d101','m','{"model":"mlp","source":{"name":"mlp","inputs":null,"device":"cpu","dtype":"float32","batch_size":1,"seq_len":128,"mode":"inference","seed":0,"search_path":[]},"kind":"composed","plans":[{"signature":"plan 0","program_hash":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","program_loose_hash":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","assignment":{"program":"composed"},"classes":{"linear-0":"linear-l"},"tuning":null}],"fingerprint":{"device":"NVIDIA H200","capability":"sm_90","threads":0,"driver":"570.1","cuda":"12.8","python":"3.11.7","packages":{"torch":"2.11.0","lightning-thunder":"0.2.6"}},"policy":"same","front_end":"dynamo","evidence":{"study":"study","date":"2026-01-02","latency_ms":1.0,"ci95_ms":[0.9,1.1],"verdict":"faster","speedup":1.5,"speedup_ci95":[1.4,1.6],"accuracy":null,"peak_memory_bytes":null,"trials":0,"processes":0,"baselines":[{"name":"eager","latency_ms":null,"ci95_ms":null,"failure":"crash"}]},"schema_version":2}','2026-12-01 04:16:22.628205');
CREATE TABLE tt_studies (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	model TEXT NOT NULL, 
	device VARCHAR(32) NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	error TEXT NOT NULL, 
	setting_key VARCHAR(64) NOT NULL, 
	spec TEXT NOT NULL, 
	description BLOB, 
	program_key VARCHAR(64), 
	environment_key VARCHAR(64), 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_studies PRIMARY KEY (id), 
	CONSTRAINT uq_tt_studies_name UNIQUE (name), 
	CONSTRAINT fk_tt_studies_program_key FOREIGN KEY(program_key) REFERENCES tt_programs ("key"), 
	CONSTRAINT fk_tt_studies_environment_key FOREIGN KEY(environment_key) REFERENCES tt_environments (strict_key)
);
INSERT INTO tt_studies VALUES(1,'kept','mlp','cpu','interrupted','','24b48a2c1516862184b566d1e353b3e1c83e7a3307c35c8d6a466b2ffbaf444b','{"name":"kept","setting":{"source":{"name":"mlp","inputs":null,"device":"cpu","dtype":"float32","batch_size":1,"seq_len":128,"mode":"inference","seed":0,"search_path":[]},"policies":["same"],"preset":"inference","front_end":"auto","metric":null,"limits":{"start_s":180.0,"load_s":300.0,"capture_s":300.0,"compile_s":900.0,"wait_s":7200.0,"check_s":300.0,"time_s":120.0,"host_memory_bytes":null},"timing":{"precision":0.005,"min_repeats":10,"max_s":5.0},"log_folder":""},"trials":100,"time_budget_s":null,"seed":0,"sampler":"tpe","workers":null}',X'789c45905b6ac3301045b722e6ab05a7b8ee83900d74118d0953692cab9635420fd262b2f78ee28f2230d2d19de36b6f90236a82d306c6ad14b2e390e1f4b941c05530c4c436e10a1d4cb83aff2be83ab3a7c3ff859ed9696a53a0798d9cc90825b4946094cd8ff6d5086bd63d2b9232d76024d04122cc1c04052eca855cd07b49df465922c7586aa28be89f9fde3ac8ce066c44061e5e3b757c5493672c2f83a85636e42f0bb596f7c6cedf931b2c2e98fd1587ef6a2ce1972749c4197333e999f4d20494b3f46e845b935004dac435ee46cfb66da49798f64fbe92b373c90a13a984c170fb251fe95cfb7e7a6f4f33913ad7a11f8eaa1dfb1ec6db1f96637ae7','d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','2026-12-01 04:16:22.545678');
CREATE TABLE tt_trials (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	role VARCHAR(32) NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	plan_key VARCHAR(64) NOT NULL, 
	latency_ms DOUBLE, 
	program_key VARCHAR(64), 
	environment_key VARCHAR(64), 
	document TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_trials PRIMARY KEY (id), 
	CONSTRAINT uq_tt_trials_study_id_number UNIQUE (study_id, number), 
	CONSTRAINT fk_tt_trials_study_id FOREIGN KEY(study_id) REFERENCES tt_studies (id), 
	CONSTRAINT fk_tt_trials_program_key FOREIGN KEY(program_key) REFERENCES tt_programs ("key"), 
	CONSTRAINT fk_tt_trials_environment_key FOREIGN KEY(environment_key) REFERENCES tt_environments (strict_key)
);
INSERT INTO tt_trials VALUES(1,1,0,'baseline','complete','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',1.0,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"eager"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"baseline","state":"complete","timing":{"latency_ms":1.0,"ci95_ms":[0.5,2.5],"host_ms":null,"clock":"host","warmup_calls":0,"marks":[]},"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.584376');
INSERT INTO tt_trials VALUES(2,1,1,'search','complete','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',1.0,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"composed"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"search","state":"complete","timing":{"latency_ms":1.0,"ci95_ms":[0.5,2.5],"host_ms":null,"clock":"host","warmup_calls":0,"marks":[]},"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.593304');
INSERT INTO tt_trials VALUES(3,1,2,'search','failed','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',NULL,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"composed"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"search","state":"failed","timing":null,"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.602924');
CREATE TABLE tt_class_measurements (
	environment_key VARCHAR(64) NOT NULL, 
	class_id VARCHAR(64) NOT NULL, 
	choice VARCHAR(64) NOT NULL, 
	latency_ms DOUBLE, 
	document TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_class_measurements PRIMARY KEY (environment_key, class_id, choice)
);
INSERT INTO tt_class_measurements VALUES('e','linear-00000000','torch',0.5,'{}','2026-12-01 04:26:00');
CREATE INDEX ix_tt_programs_hash ON tt_programs (hash);
CREATE INDEX ix_tt_programs_loose_hash ON tt_programs (loose_hash);
CREATE INDEX ix_tt_environments_loose_key ON tt_environments (loose_key);
CREATE INDEX ix_tt_studies_setting_key ON tt_studies (setting_key);
CREATE INDEX ix_tt_comparisons_study_id ON tt_comparisons (study_id);
CREATE INDEX ix_tt_recipes_model_key ON tt_recipes (model_key);
CREATE INDEX ix_tt_recipe_plans_program_hash ON tt_recipe_plans (program_hash);
CREATE INDEX ix_tt_recipe_plans_program_loose_hash ON tt_recipe_plans (program_loose_hash);
COMMIT;
