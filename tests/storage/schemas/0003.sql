BEGIN TRANSACTION;
CREATE TABLE tt_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tt_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tt_alembic_version" VALUES('0003');
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
INSERT INTO "tt_comparisons" VALUES(1,1,X'789CBD534BAEDB300CBC0BD76AE000FDA0BE4137EF0245203032ED08912543928B1A81EF5E52FEC40F29BA288A6693502487C319E60126F84CBEA198A0FEFE008F3D410D841D45508029D9CEF7E433D40F1862E822F67B7E566093BE6222673DB7E538D2AC76902BA5FC070C13FA21246A5E605A7489E68B821846DF2CBCB8CD504ADA36507F517075C1DC97CCBEC08136E3DA6C8387BA5290B01F1C25DD4BFDF954A9EA7466F09431666A3432AD73B57D4E950C4663C6886612C20BA6FC8831441D9181B983712092E3E807E992E261F26878B66C016FF8C6547218CE1ABB48B428E047E714B0048DE558BF035D724370D65862B68F5966B414C91B416C5DC0FCF923A35A3F8C3995F578F9148A7B9799EB71189C65519FCC992ABFB736A6AC0D3AA757E481F0AE7BEA439CF475CA65E0D6234CA409AD1BE392296EF2F7DDFA46DC8B986E22F58D7DE3385BF65C41CF2631043F34C242360DE3F00C5DE838F879926FA1DB632C3E8211473F981BFA8E0B2FC5FEC3EA9BB3EC9A6FACEF7E7BADEC06974FC5E96290B15F3F2DBEB3E70ABEF9D67A9B2710F0A3E425D052BDBD3C2F608D3759578F5EB55B12EF655EDF1615F761EB5557DB5CD662BBA0239D86E46AA4F0F53F75DC74E9D9573D40FCE7F5FEE96DFC954E97F9179EA9A517','2026-12-01 04:16:22.615626');
CREATE TABLE tt_environments (
	strict_key VARCHAR(64) NOT NULL, 
	loose_key VARCHAR(64) NOT NULL, 
	device TEXT NOT NULL, 
	document TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_environments PRIMARY KEY (strict_key)
);
INSERT INTO "tt_environments" VALUES('c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','8bae64f2985871437ad631c4adcc199d198d44bce69a04b3f3d4b6feb05b58b0','NVIDIA H200','{"device":"NVIDIA H200","capability":"sm_90","threads":0,"driver":"570.1","cuda":"12.8","python":"3.11.7","packages":{"torch":"2.11.0","lightning-thunder":"0.2.6"}}','2026-12-01 04:16:22.567749');
CREATE TABLE tt_failures (
	trial_id INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	phase VARCHAR(32) NOT NULL, 
	cause TEXT NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_tt_failures PRIMARY KEY (trial_id), 
	CONSTRAINT fk_tt_failures_trial_id FOREIGN KEY(trial_id) REFERENCES tt_trials (id)
);
INSERT INTO "tt_failures" VALUES(3,'wrong','compile','','{"kind":"wrong","phase":"compile","message":"no","group":"","log":""}');
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
INSERT INTO "tt_measurements" VALUES(1,2,'f8',X'789C636000810FF6A16070D51E0018850442');
INSERT INTO "tt_measurements" VALUES(2,2,'f8',X'789C636000810FF6A16070D51E0018850442');
CREATE TABLE tt_programs (
	"key" VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	loose_hash VARCHAR(64) NOT NULL, 
	document BLOB NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tt_programs PRIMARY KEY ("key")
);
INSERT INTO "tt_programs" VALUES('d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',X'789CA551C96E83400CFD179FA7882E878A5F8922E4800956070F9DA50D8AFAEF355B68A52A8732276FEF3DFBCD151AEF2496243514500F829D03032D865673DCF994C93A17A85CF84E3B9FF2B93E4071B8024B4D17287203678F7D3B45BA3CA94A74BE6A3391AC495245768236B32C845EF16F3C5D7ACB59FA1467CAD062AFF8C38B793D1AA8E33066D05887F1F949473DBD27F6144A55548E066DA02FF34F9C4EBA14F769EB2487F283E973A918A82C8650F276E2430EE35C45D6CE4A9B5DB395F9F10E6AACD362F8AFEEFAB13FABF60F7B2B972442F1B8AADDFB1C15A40B76BDA575AF90BA0EFDA084D33A81E3D45AC2725B4F2BD1230BCBF96685270C4E26EC37E4EBFC52','2026-12-01 04:16:22.564586');
CREATE TABLE tt_recipe_plans (
	recipe_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	program_hash VARCHAR(64) NOT NULL, 
	program_loose_hash VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_tt_recipe_plans PRIMARY KEY (recipe_id, position), 
	CONSTRAINT fk_tt_recipe_plans_recipe_id FOREIGN KEY(recipe_id) REFERENCES tt_recipes (id)
);
INSERT INTO "tt_recipe_plans" VALUES(1,0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb');
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
INSERT INTO "tt_recipes" VALUES(1,1,'42f6e079d101','m','{"model":"mlp","source":{"name":"mlp","inputs":null,"device":"cpu","dtype":"float32","batch_size":1,"seq_len":128,"mode":"inference","seed":0,"search_path":[]},"kind":"composed","plans":[{"signature":"plan 0","program_hash":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","program_loose_hash":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","assignment":{"program":"composed"},"classes":{"linear-0":"linear-l"},"tuning":null}],"fingerprint":{"device":"NVIDIA H200","capability":"sm_90","threads":0,"driver":"570.1","cuda":"12.8","python":"3.11.7","packages":{"torch":"2.11.0","lightning-thunder":"0.2.6"}},"policy":"same","front_end":"dynamo","evidence":{"study":"study","date":"2026-01-02","latency_ms":1.0,"ci95_ms":[0.9,1.1],"verdict":"faster","speedup":1.5,"speedup_ci95":[1.4,1.6],"accuracy":null,"peak_memory_bytes":null,"trials":0,"processes":0,"baselines":[{"name":"eager","latency_ms":null,"ci95_ms":null,"failure":"crash"}]},"schema_version":2}','2026-12-01 04:16:22.628205');
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
INSERT INTO "tt_studies" VALUES(1,'kept','mlp','cpu','interrupted','','24b48a2c1516862184b566d1e353b3e1c83e7a3307c35c8d6a466b2ffbaf444b','{"name":"kept","setting":{"source":{"name":"mlp","inputs":null,"device":"cpu","dtype":"float32","batch_size":1,"seq_len":128,"mode":"inference","seed":0,"search_path":[]},"policies":["same"],"preset":"inference","front_end":"auto","metric":null,"limits":{"start_s":180.0,"load_s":300.0,"capture_s":300.0,"compile_s":900.0,"wait_s":7200.0,"check_s":300.0,"time_s":120.0,"host_memory_bytes":null},"timing":{"precision":0.005,"min_repeats":10,"max_s":5.0},"log_folder":""},"trials":100,"time_budget_s":null,"seed":0,"sampler":"tpe","workers":null}',X'789C45905B6AC3301045B722E6AB05A7B8EE83900D74118D0953692CAB9635420FD262B2F78EE28F2230D2D19DE36B6F90236A82D306C6AD14B2E390E1F4B941C05530C4C436E10A1D4CB83AFF2BE83AB3A7C3FF859ED9696A53A0798D9CC90825B4946094CD8FF6D5086BD63D2B9232D76024D04122CC1C04052ECA855CD07B49DF465922C7586AA28BE89F9FDE3AC8CE066C44061E5E3B757C5493672C2F83A85636E42F0BB596F7C6CEDF931B2C2E98FD1587EF6A2CE1972749C4197333E999F4D20494B3F46E845B935004DAC435EE46CFB66DA49798F64FBE92B373C90A13A984C170FB251FE95CFB7E7A6F4F33913AD7A11F8EAA1DFB1EC6DB1F96637AE7','d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','2026-12-01 04:16:22.545678');
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
INSERT INTO "tt_trials" VALUES(1,1,0,'baseline','complete','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',1.0,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"eager"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"baseline","state":"complete","timing":{"latency_ms":1.0,"ci95_ms":[0.5,2.5],"host_ms":null,"clock":"host","warmup_calls":0,"marks":[]},"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.584376');
INSERT INTO "tt_trials" VALUES(2,1,1,'search','complete','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',1.0,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"composed"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"search","state":"complete","timing":{"latency_ms":1.0,"ci95_ms":[0.5,2.5],"host_ms":null,"clock":"host","warmup_calls":0,"marks":[]},"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.593304');
INSERT INTO "tt_trials" VALUES(3,1,2,'search','failed','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',NULL,'d02d950565f30c65fbfe5450c37f32dd8a1efe07125f74abb29faef2b005a243','c6cd395a59c437486c4748464ed6f91eb871074cccf5ce0076bcd6412d57074f','{"candidate":{"assignment":{"program":"composed"},"plan_key":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},"role":"search","state":"failed","timing":null,"accuracy":null,"peak_memory_bytes":null,"releasable_bytes":0,"first_call_s":null,"applied":null,"phase_s":{},"overhead_s":0.0,"worker":"","process_id":0,"started_at":0.0,"captures":0}','2026-12-01 04:16:22.602924');
CREATE INDEX ix_tt_programs_hash ON tt_programs (hash);
CREATE INDEX ix_tt_programs_loose_hash ON tt_programs (loose_hash);
CREATE INDEX ix_tt_environments_loose_key ON tt_environments (loose_key);
CREATE INDEX ix_tt_studies_setting_key ON tt_studies (setting_key);
CREATE INDEX ix_tt_comparisons_study_id ON tt_comparisons (study_id);
CREATE INDEX ix_tt_recipes_model_key ON tt_recipes (model_key);
CREATE INDEX ix_tt_recipe_plans_program_hash ON tt_recipe_plans (program_hash);
CREATE INDEX ix_tt_recipe_plans_program_loose_hash ON tt_recipe_plans (program_loose_hash);
COMMIT;
